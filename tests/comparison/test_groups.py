"""Groups of runs: their labels, and the keys of the config in which they differ."""

import copy
import json

import pytest

from rope_jax.comparison.groups import describe_settings, distinguish, group_sweeps, without_seed
from tests.comparison.conftest import read

STAGE = {"steps": 1000, "seq_len": 128, "batch_size": 16}


def test_only_a_suffix_behind_a_separator_names_a_seed():
    for suffix in ("", "-s1", "-2", "_seed2", "-seed-2", ".3", "=s4"):
        assert without_seed(f"novels{suffix}") == "novels"
    for name in ("gpt2", "base10000", "x-s", "bass", "bass1", "s1", "x-base2"):
        assert without_seed(name) == name
    assert without_seed("gpt-2-s1") == "gpt-2"


def test_a_group_is_labelled_by_its_runs_without_their_seeds(sweep_of):
    for runs, label in (
        (("novels", "novels-s1"), "novels (2 seeds)"),
        (("demo-3", "demo-4"), "demo (2 seeds)"),
        (("llama-2", "llama-2-s1"), "llama-2 (2 seeds)"),
        (("a0", "a1"), "a0 to a1 (2 seeds)"),
        (("s0", "s1", "s2", "s3", "s4"), "s0 to s4 (5 seeds)"),
        (("gpt-2",), "gpt-2"),  # not pooled: it keeps its whole name
    ):
        made = [sweep_of(run, seed=seed) for seed, run in enumerate(runs)]
        (group,) = group_sweeps(read(*made), [], {})
        assert group.label == label


def experiment(**changes):
    """Return a run's config as JSON; `rope__base=1e6` sets rope.base."""
    config = {"rope": {}, "model": {}, "stages": [copy.deepcopy(STAGE)]}
    for key, value in changes.items():
        *sections, last = key.split("__")
        node = config
        for section in sections:
            node = node[int(section) if section.isdecimal() else section]
        node[last] = value
    return json.dumps(config)


@pytest.mark.parametrize(
    ("others", "found"),
    [
        # whole numbers are written as such, and each group has the keys that any two differ in
        (
            [experiment(rope__base=5e5), experiment(rope__base=5e5, model__hidden_size=256)],
            [
                "rope.base 10000, model.hidden_size 128",
                "rope.base 500000, model.hidden_size 128",
                "rope.base 500000, model.hidden_size 256",
            ],
        ),
        # of a scaling that the others do not have, only what is not the default
        (
            [experiment(rope__scaling={"type": "yarn", "factor": 8, "beta_fast": 16})],
            [
                "rope.scaling.type none",
                "rope.scaling.type yarn, rope.scaling.factor 8, rope.scaling.beta_fast 16",
            ],
        ),
        # a section that is null in the others
        (
            [experiment(rope__map={"type": "rerope", "window": 64}, stages__0__seq_len=256)],
            [
                "rope.map null, stages.0.seq_len 128",
                "rope.map.type rerope, rope.map.window 64, stages.0.seq_len 256",
            ],
        ),
        # a stage that the others do not have
        (
            [experiment(stages=[STAGE, STAGE])],
            [
                "",
                "stages.1.steps 1000, stages.1.seq_len 128, stages.1.batch_size 16",
            ],
        ),
        # a default that is spelled out is no difference, and neither is an older file without it
        ([experiment(rope__base=10000.0, model__qk_norm=False)], ["", ""]),
        # how an imported model was trained is not known
        (
            [
                experiment(stages__0__seq_len=256),
                experiment(
                    imported={"model": "a.gguf", "identity": "1f"},
                    model__hidden_size=96,
                    stages__0__seq_len=8192,
                ),
            ],
            [
                "imported null, model.hidden_size 128, stages.0.seq_len 128",
                "imported null, model.hidden_size 128, stages.0.seq_len 256",
                "imported.model a.gguf, model.hidden_size 96",
            ],
        ),
        # a config that cannot be read is not compared
        ([None, experiment(rope__base=3.5)], ["rope.base 10000", "", "rope.base 3.5"]),
    ],
)
def test_settings_that_differ_are_named(others, found):
    for settings, text in zip(distinguish([experiment(), *others]), found, strict=True):
        parts = describe_settings(settings, briefly=False).split(", ")
        assert sorted(parts) == sorted(text.split(", "))


def test_long_values_and_lists_of_settings_are_shortened():
    odd = experiment(data={"type": "stdlib", "cache_dir": "a\x1b[31m\n" * 20})
    _, found = distinguish([experiment(), odd])
    assert found["data.cache_dir"].startswith("a\\x1b[31m\\na")
    assert len(found["data.cache_dir"]) == 60
    settings = {f"rope.k{i}": str(i) for i in range(7)}
    shown = "rope.k0 0, rope.k1 1, rope.k2 2 and 4 more"
    assert describe_settings(settings, briefly=True) == shown
    assert describe_settings(settings, briefly=False).count(",") == 6
