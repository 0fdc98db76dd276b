"""The training loop on a tiny model: what it logs and saves, and that resuming is exact."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from rope_jax import stopping
from rope_jax.config.inherit import saved_steps
from rope_jax.config.load import load
from rope_jax.config.resolve import resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.devices.mesh import Placement
from rope_jax.errors import Stopped, UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import JsonLinesWriter
from rope_jax.training import loop as train_loop
from rope_jax.training.checkpoints import Checkpoints, newest_step
from rope_jax.training.program import Program, StageProgram
from rope_jax.training.run import train
from tests.training.conftest import STAGES, Run, quiet


def lines(run: RunDirectory) -> list[dict]:
    return [json.loads(line) for line in run.metrics_file.read_text().splitlines()]


def assert_same_end(one: Run, other: Run) -> None:
    like = Program(resolve_run(one[0]), 257, Placement(one[0].mesh)).abstract_state
    ends = []
    for _, run in (one, other):
        with contextlib.closing(Checkpoints(run.checkpoints)) as checkpoints:
            ends.append(jax.tree.leaves(checkpoints.restore(9, like)))
    for a, b in zip(*ends, strict=True):
        np.testing.assert_array_equal(a, b)
    assert one[1].metrics_file.read_bytes() == other[1].metrics_file.read_bytes()


def test_a_run_directory_has_its_config_environment_and_checkpoints(whole: Run) -> None:
    config_, run = whole
    assert load(TrainingConfig, run.config_file) == config_
    environment = json.loads(run.environment_file.read_text())
    assert environment["packages"]["jax"] == jax.__version__
    assert len(environment["corpus"]["fingerprint"]) == 64
    assert saved_steps(run.checkpoints) == [8, 9]
    speeds = [json.loads(line) for line in run.throughput_file.read_text().splitlines()]
    assert all(line["throughput/tokens_per_second"] > 0 for line in speeds)


def test_metrics_are_logged_at_the_configured_steps(whole: Run) -> None:
    logged = lines(whole[1])
    steps = [line["step"] for line in logged if "train/loss" in line]
    assert steps == [2, 4, 5, 6, 8, 9]  # every second one, and the last of each stage
    validated = {line["step"]: line["validation/loss"] for line in logged if len(line) < 5}
    assert list(validated) == [3, 5, 6, 9]
    assert validated[9] < validated[3] < np.log(257) + 0.1
    assert not any("throughput" in key for line in logged for key in line)
    # 4 × 16 tokens per step, then 2 × 32: the same number.
    assert [line["train/tokens"] for line in logged if "train/tokens" in line] == [
        64 * step for step in steps
    ]
    last = next(line for line in logged if line["step"] == 9 and "train/loss" in line)
    shares = {k: v for k, v in last.items() if k.startswith("tokens_at/")}
    assert list(shares) == ["tokens_at/0-15", "tokens_at/16-31"]
    assert sum(shares.values()) == pytest.approx(1)
    mean = sum(v * last[k.replace("tokens_at", "train_loss_at")] for k, v in shares.items())
    assert mean == pytest.approx(last["train/loss"], rel=1e-5)
    distances = {k: v for k, v in last.items() if k.startswith("distances/")}
    names = ["0", "1", "2-3", "4-7", "8-15", "16-31"]
    assert list(distances) == [f"distances/{name}" for name in names]
    assert sum(distances.values()) == pytest.approx(1)


def test_a_run_that_a_signal_stops_and_that_gets_another_stage_is_like_any_other(
    config: Callable[..., TrainingConfig],
    whole: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, write = config(tmp_path, stages=STAGES[:1]), JsonLinesWriter.scalars

    def write_then_signal(self: JsonLinesWriter, step: int, values: dict) -> None:
        write(self, step, values)
        if step == 2 and "train/loss" in values:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(JsonLinesWriter, "scalars", write_then_signal)
        expected = r"stopped after step \d of 5, which is saved"
        with stopping.listening(), pytest.raises(Stopped, match=expected) as stop:
            train(first, quiet())
    assert stop.value.signal == signal.SIGTERM
    newest = newest_step(Path(first.runs_dir) / first.name / "checkpoints")
    assert f"step {newest} of" in str(stop.value)
    assert newest in (2, 3)  # the step in progress is not thrown away
    run = train(first, quiet())
    assert lines(run)[-1]["step"] == 5

    before = run.config_file.read_bytes()
    longer = config(tmp_path, stages=[STAGES[0] | {"steps": 8}])
    planned = r"another stages\.0\.steps; its learning rate is planned for 5 steps"
    with pytest.raises(UserError, match=rf"{planned}.*name=NEW init_from={run.path}$"):
        train(longer, quiet())
    shorter = config(tmp_path, stages=[STAGES[0] | {"steps": 3}])
    with pytest.raises(UserError, match=r"it has been trained to step 5 already"):
        train(shorter, quiet())
    with pytest.raises(UserError, match=r"another seed; give this one another name, or delete"):
        train(first.model_copy(update={"seed": 1}), quiet())
    assert run.config_file.read_bytes() == before
    both = config(tmp_path)
    assert_same_end(whole, (both, train(both, quiet())))
    assert run.load_config() == both


def test_steps_since_the_last_intact_checkpoint_are_trained_again(whole: Run, copied: Run) -> None:
    config_, run = copied
    shutil.rmtree(run.checkpoints / "9" / "opt_state")
    said = io.StringIO()
    train(config_, plain_console(file=said, width=300))
    assert_same_end(whole, copied)
    assert "the checkpoint of step 9 is damaged (" in said.getvalue()
    assert "using step 8" in said.getvalue()
    assert [path.name for path in (run.path / "damaged").iterdir()] == ["9-0"]


def test_a_loss_that_is_not_finite_stops_the_run(
    resumed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_, run = resumed
    loss_sums, batch = StageProgram.loss_sums, train_loop.training_batch

    def without_numbers(*arguments: object) -> object:
        sums = loss_sums(*arguments)  # type: ignore[arg-type]
        return sums._replace(nll=sums.nll * np.float32("nan"))

    def poisoned(*args: object, **settings: int) -> object:
        made = batch(*args, **settings)  # type: ignore[arg-type]
        return made._replace(weights=made.weights * np.float32(np.nan))

    with monkeypatch.context() as patch:
        patch.setattr(StageProgram, "loss_sums", without_numbers)
        expected = r"step 9: the validation loss is nan.*of step 8 is kept"
        with pytest.raises(UserError, match=expected):
            train(config_, quiet())
    assert saved_steps(run.checkpoints) == [8]
    monkeypatch.setattr(train_loop, "training_batch", poisoned)
    expected = r"^step 9: the loss is nan and the gradient's norm nan; .*of step 8 is kept"
    with pytest.raises(UserError, match=expected):
        train(config_, quiet())
    assert saved_steps(run.checkpoints) == [8]
    assert max(line["step"] for line in lines(run)) == 8


def test_a_checkpoint_belongs_to_the_stage_it_was_saved_in(
    config: Callable[..., TrainingConfig], tmp_path: Path
) -> None:
    config_ = config(tmp_path)
    assert [(span.begin, span.end) for span in config_.spans] == [(0, 5), (5, 9)]
    assert [config_.stage_at(step) for step in (1, 5, 6, 9)] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="step 10 is past the end of the last stage, 9"):
        config_.stage_at(10)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_the_last_losses(terminal: bool) -> None:
    file = io.StringIO()
    console = plain_console(file=file, width=200, force_terminal=terminal, no_color=True)
    progress = train_loop.TrainingProgress(console, total=4, done=0)
    with progress.bar:
        progress.trained(2, loss=2.0, tokens_per_second=None)
        progress.validated(2, loss=1.5)
        progress.trained(4, loss=1.75, tokens_per_second=14_321.0)
        progress.validated(4, loss=1.25)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).strip().splitlines()
    if terminal:
        assert "loss 1.750, 14.3k tokens/s, validation 1.250" in shown[-1]
    else:
        assert shown == [
            "step 2/4  loss 2.000",
            "step 2/4  validation 1.500",
            "step 4/4  loss 1.750, 14.3k tokens/s",
            "step 4/4  validation 1.250",
        ]
