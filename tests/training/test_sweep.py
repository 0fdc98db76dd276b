"""The sweep during training: its numbers, when it is made, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rope_jax import session
from rope_jax.config.load import validate
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.data.storage import Corpus
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import Scalars
from rope_jax.sweeps.run import sweep_run
from rope_jax.training import run as training_run
from rope_jax.training.run import train
from rope_jax.training.sweep import TrainingSweep
from tests.training.conftest import Run, quiet

SCALINGS = [
    {"type": "trained"},
    {"type": "none", "map": {"type": "leaky_rerope"}, "name": "leaky"},
    {"type": "yarn", "factor": "auto"},
]
SWEEP = {"every_steps": 4, "lengths": [8, 32], "scalings": SCALINGS, "max_documents": 3}


def sweeps(run: RunDirectory) -> dict[int, dict[str, float]]:
    """Return the values of each sweep by step; every step has at most one."""
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    lines = [line for line in lines if any(key.startswith("sweep/") for key in line)]
    found = {line.pop("step"): line for line in lines}
    assert len(found) == len(lines)
    return found


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, config: Callable[..., TrainingConfig]) -> Run:
    """A run of 5 steps at 16 tokens and 4 at 32, with PI, that sweeps itself."""
    config_ = config(
        tmp_path_factory.mktemp("swept"), sweep=SWEEP, checkpoint={"every_steps": 4, "keep": 9}
    )
    opened, compiled = session.open_corpus, []

    def without_test(*arguments: Any) -> Corpus:
        corpus = opened(*arguments)
        object.__setattr__(corpus, "test", None)  # reading it fails
        return corpus

    class Counted(TrainingSweep):
        def measure(self, *arguments: Any) -> Scalars:
            scalars = super().measure(*arguments)
            compiled.append(len(self._programs))
            return scalars

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "open_corpus", without_test)
        patch.setattr(training_run, "TrainingSweep", Counted)
        run = train(config_, quiet())
    # one for each length, and one for the map, which acts at 32 tokens only
    assert compiled == [4, 4, 4, 4, 4]
    return config_, run


def test_it_sweeps_before_the_first_step_then_regularly_and_at_the_end_of_each_stage(
    swept: Run,
) -> None:
    found = sweeps(swept[1])
    assert list(found) == [0, 4, 5, 8, 9]
    for values in found.values():
        assert [key for key in values if key.startswith("sweep/trained/")] == [
            "sweep/trained/nll_8",
            "sweep/trained/nll_16",  # the window: what truncation keeps
            "sweep/trained/nll_32",
            "sweep/trained/above_truncation_32",
        ]
        truncated = values["sweep/trained/nll_16"]
        for entry in ("trained", "leaky", "yarn-auto-over-trained"):
            above = values[f"sweep/{entry}/nll_32"] - truncated
            assert values[f"sweep/{entry}/above_truncation_32"] == pytest.approx(above, abs=1e-12)


def test_it_equals_a_sweep_of_the_saved_checkpoints(swept: Run) -> None:
    config_, run = swept
    settings = {
        "lengths": [8, 16, 32],
        "scalings": [{"type": "trained"}],
        "max_documents": 3,
        "max_blocks": 2,
        "split": "validation",
        "steps": [5, 9],
        "resamples": 10,
    }
    sweep_run(run, config_, validate(SweepConfig, settings, "test"), quiet())
    lines = (run.evals / "sweep" / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 2 * 3
    logged = sweeps(run)
    for row in rows:
        value = logged[row["step"]][f"sweep/trained/nll_{row['length']}"]
        assert value == pytest.approx(row["nll"], rel=1e-6)


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        ({"lengths": [16, 9000]}, r"sweep\.lengths: none of the 2 documents has the 9001 tokens"),
        (
            {"lengths": [16], "scalings": [{"type": "none", "map": {"type": "rerope"}}]},
            r"sweep\.scalings: rerope-over-trained: map\.type: rerope with auto settings acts",
        ),
        (None, "sweep: there is no validation split to read; raise data"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_before_anything_is_written(
    config: Callable[..., TrainingConfig], tmp_path: Path, sweep: dict[str, Any] | None, says: str
) -> None:
    config_ = config(tmp_path, sweep=sweep or {"lengths": [16]})
    if sweep is None:
        data = config_.data.model_copy(update={"validation_fraction": 0.0})
        config_ = config_.model_copy(update={"data": data})
    with pytest.raises(UserError, match=says):
        train(config_, quiet())
    assert not (tmp_path / "runs").exists()
