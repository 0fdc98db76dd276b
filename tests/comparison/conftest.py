"""Sweep folders with made-up results, and comparisons of them."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rope_jax.comparison.comparable import find_mismatches
from rope_jax.comparison.curves import compare
from rope_jax.comparison.read import find_sweeps, read_sweep
from rope_jax.config.load import dump, validate
from rope_jax.config.presentation import CompareConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.evaluation.results import Measurement, SweepResult
from rope_jax.results.files import write_results
from rope_jax.results.rows import Origin
from rope_jax.results.statistics import Sums
from rope_jax.rope.strategies import NoScaling, YaRNScaling
from rope_jax.sweeps.run import sweep_tables

WEIGHT = np.array([4.0] * 18 + [8.0] * 6)
# Offsets added to each document's level, by curve and length. The window is 16.
OFFSETS = {
    "trained": {8: 0.25, 16: 0.0, 32: 0.5, 64: 1.5},
    "none": {8: 0.25, 16: 0.0, 32: 0.5, 64: 1.5},
    "yarn-4": {8: 0.5, 16: 0.25, 32: 0.125, 64: 0.375},
}


def read(*runs):
    return [read_sweep(folder) for folder in find_sweeps(runs, None)]


def compared(*runs, **settings):
    sweeps = read(*runs)
    return compare(sweeps, find_mismatches(sweeps), CompareConfig(resamples=50, **settings))


@pytest.fixture
def sweep_of(tmp_path):
    """Return a function that makes a run with one sweep and returns the run's folder."""
    return partial(make_sweep, tmp_path)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """Like `sweep_of`, for results that a module's tests share."""
    return partial(make_sweep, tmp_path_factory.mktemp("runs"))


def make_sweep(
    place,
    run="one",
    *,
    seed=0,
    shift=0.0,
    name="demo",
    steps=(100,),
    model="hidden_size: 16",
    corpus="c0ffee",
    bos="document",
    split="test",
    targets="abc",
    protocols=("same_tokens", "whole_window"),
    beta_fast=32,
    window=16,
    own="trained",  # the entry without a scaling, if any: trained, none or None
    trained_with="none",
    lengths=(8, 16, 32, 64),
    yarn_offsets=OFFSETS["yarn-4"],
    factors=None,  # of the curve yarn-4, as a fit finds them, instead of YaRN
) -> Path:
    folder = place / run
    folder.mkdir(exist_ok=True)
    factor = "" if trained_with == "none" else ", factor: 4.0"
    (folder / "config.yaml").write_text(
        f"name: {run}\nseed: {seed}\nruns_dir: x\n"
        f"model: {{{model}, num_attention_heads: 1}}\n"
        f"rope: {{scaling: {{type: {trained_with}{factor}}}}}\n"
        "optim: {warmup_steps: 5}\n"
        f"stages: [{{steps: 100, seq_len: {window}, batch_size: 1}}]\n"
    )
    yarn = {"type": "yarn", "factor": 4.0, "beta_fast": beta_fast}
    if factors is not None:
        yarn = {"type": "explicit", "factors": factors, "name": "yarn-4"}
    raw = {"scalings": [yarn] if own is None else [own, yarn], "lengths": lengths}
    raw |= {"protocols": protocols, "bos": bos, "split": split, "name": name, "resamples": 50}
    settings = validate(SweepConfig, raw, "test")
    offsets, documents = OFFSETS | {"yarn-4": yarn_offsets}, len(WEIGHT)
    noise = np.random.default_rng([seed, len(run)]).normal(0, 0.05, documents)
    level = np.linspace(1.0, 3.0, documents) + shift + noise
    size = WEIGHT * (1 + np.arange(documents) % 3)  # bytes

    def measured(entry: str, protocol: str, length: int, step: int) -> Measurement:
        return Measurement(
            entry=entry,
            scaling=YaRNScaling(factor=4.0) if entry == "yarn-4" else NoScaling(),
            map=None,
            protocol=protocol,
            length=length,
            first_position=length - 3,
            stride=None if protocol == "same_tokens" else length,
            sums=Sums((level + offsets[entry][length] + 10 / step) * WEIGHT, WEIGHT, size),
            unit_documents=np.arange(documents),
            tokens=int(WEIGHT.sum()),
            targets=targets if protocol == "same_tokens" else f"{targets}-{length}",
            seconds=0.5,
        )

    results = []
    for step in steps:
        made = [
            measured(entry.label, protocol, n, step)
            for n in lengths
            for protocol in protocols
            for entry in settings.scalings
        ]
        is_paired = "same_tokens" in protocols
        result = SweepResult(
            config=settings,
            window=window,
            longest=64,
            documents=documents,
            unit_kind="documents",
            measurements=made,
            baseline=measured("trained", "same_tokens", window, step) if is_paired else None,
            compilations=4,
        )
        results.append((result, Origin(run, step, seed, corpus)))
    evals = folder / "evals" / name
    evals.mkdir(parents=True)
    (evals / "sweep.yaml").write_text(dump(settings))
    write_results(evals, sweep_tables(results))
    return folder
