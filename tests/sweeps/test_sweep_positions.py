"""Sweeps of runs with position maps, and of runs whose positions do not rotate."""

import io
from contextlib import nullcontext

import pytest

from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.sweeps.resolve import resolve_run_sweep
from rope_jax.sweeps.run import sweep_run
from tests.sweeps.conftest import SMALL, STAGE, rows, swept, trained

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    model = SMALL | {"position": {"type": "learned"}}
    return trained(tmp_path_factory.mktemp("learned"), model=model)


MAPPED = [
    "trained",
    {"type": "none", "map": {"type": "leaky_rerope"}, "name": "auto"},
    {"type": "none", "map": {"type": "streaming", "sinks": 2}},
]


def test_maps_with_automatic_settings_are_those_of_the_length(run):
    folder, said = swept(run, name="maps", scalings=MAPPED)
    assert "auto: " in said
    # w = 3L/4 and k = (n − 1 − w)/(L − 1 − w) at n = 64
    assert "map leaky_rerope: window 12, k 17" in said
    found = {(row["name"], row["length"]): row for row in rows(folder)}
    for length in (16, 64):
        plain, auto = found["trained", length], found["auto", length]
        assert (plain["nll"] == auto["nll"]) == (length <= 16)
        assert auto["map"] == ("" if length <= 16 else "leaky_rerope+window=12+k=17")
        assert not auto["auto"]  # which is about factors
    assert found["streaming", 64]["map"] == "streaming+sinks=2+recent=13"


def test_a_learned_table_ends_a_sweep(learned):
    said = plain_console(file=io.StringIO(), width=200)
    config = SweepConfig(name="default", lengths=(16, 64), resamples=50)
    sweep_run(*learned, config, said)
    assert "no curve at 64: position learned ends at 16 tokens" in said.file.getvalue()
    folder = learned[0].evals / "default"
    # of the default scalings, only this one
    assert [(row["name"], row["length"]) for row in rows(folder)] == [("trained", 16)]
    with pytest.raises(
        UserError, match=r"^lengths: 32 is too long: the model's positions end at 16"
    ):
        swept(learned, name="long", lengths=[32, 64], scalings=["trained"])


STAGED = TrainingConfig.model_validate(
    {"name": "x", "stages": [STAGE, STAGE | {"seq_len": 64}], "optim": {"warmup_steps": 0}}
)


@pytest.mark.parametrize(
    ("steps", "window", "is_refused"),
    [([1], 40, True), ([3], 40, False), ([1, 3], 40, True), ([3], 64, True)],
)
def test_an_entry_is_refused_if_it_does_not_work_at_a_stage_of_the_steps(steps, window, is_refused):
    entry = {"type": "none", "map": {"type": "rerope", "window": window}}
    config = SweepConfig.model_validate({"scalings": [entry], "lengths": [16, 128]})
    says = r"^scalings: rerope: map.window: "
    with pytest.raises(UserError, match=says) if is_refused else nullcontext():
        resolve_run_sweep(config, STAGED, steps)
