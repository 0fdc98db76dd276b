"""The training loop on a tiny model: what it logs and saves, and that resuming is exact."""

import io
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rope_jax import stopping
from rope_jax.config.load import load
from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import Stopped, UserError
from rope_jax.model.resolve import resolve_model
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import JsonLinesWriter
from rope_jax.training import loop as train_loop
from rope_jax.training.program import StageProgram
from rope_jax.training.run import train

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def quiet() -> Console:
    return plain_console(quiet=True)


def lines(run: RunDirectory) -> list[dict]:
    return [json.loads(line) for line in run.metrics_file.read_text().splitlines()]


def final_params(run: RunDirectory, config_: Config) -> dict:
    from rope_jax.model.decoder import LanguageModel
    from rope_jax.training.checkpoints import newest_params

    model = LanguageModel(resolve_model(config_.model), 257)
    step, params = newest_params(
        run.checkpoints, jax.eval_shape(lambda: model.init(0)), warn=pytest.fail
    )
    assert step == 9
    return params


def test_a_run_directory_has_its_config_environment_and_checkpoints(
    whole: tuple[Config, RunDirectory],
) -> None:
    config_, run = whole
    assert load(Config, run.config_file) == config_
    environment = json.loads(run.environment_file.read_text())
    assert environment["packages"]["jax"] == jax.__version__
    assert len(environment["corpus"]["fingerprint"]) == 64
    assert sorted(int(p.name) for p in run.checkpoints.iterdir()) == [8, 9]
    assert len(list(run.path.glob("events.*.tfevents.*"))) == 1


def test_metrics_are_logged_at_the_configured_steps(whole: tuple[Config, RunDirectory]) -> None:
    logged = lines(whole[1])
    steps = [line["step"] for line in logged if "train/loss" in line]
    assert steps == [2, 4, 5, 6, 8, 9]  # every second one, and the last of each stage
    assert [line["step"] for line in logged if "validation/loss" in line] == [3, 5, 6, 9]
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
    events = EventAccumulator(str(whole[1].path), size_guidance={"histograms": 0})
    histograms = {
        event.step: event.histogram_value for event in events.Reload().Histograms("train_distances")
    }
    assert list(histograms) == steps
    counts = np.array(histograms[9].bucket)
    assert histograms[9].bucket_limit == [1, 2, 4, 8, 16, 32]
    np.testing.assert_allclose(counts / counts.sum(), list(distances.values()))


def test_the_loss_falls(whole: tuple[Config, RunDirectory]) -> None:
    losses = [line["validation/loss"] for line in lines(whole[1]) if "validation/loss" in line]
    assert losses[0] > losses[-1]
    assert losses[0] < np.log(257) + 0.1


def test_throughput_is_logged_in_a_file_of_its_own(
    whole: tuple[Config, RunDirectory],
) -> None:
    assert not any("throughput" in key for line in lines(whole[1]) for key in line)
    speeds = [json.loads(line) for line in whole[1].throughput_file.read_text().splitlines()]
    assert speeds
    assert all(line["throughput/tokens_per_second"] > 0 for line in speeds)


def assert_same_end(one: tuple[Config, RunDirectory], other: tuple[Config, RunDirectory]) -> None:
    for a, b in zip(
        jax.tree.leaves(final_params(one[1], one[0])),
        jax.tree.leaves(final_params(other[1], other[0])),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    assert one[1].metrics_file.read_bytes() == other[1].metrics_file.read_bytes()


@pytest.mark.parametrize(
    ("number", "at"),
    [(signal.SIGTERM, 2), pytest.param(signal.SIGINT, 6, marks=pytest.mark.slow)],
)
def test_a_signal_saves_and_stops_and_the_same_call_continues(
    config: Callable[..., Config],
    whole: tuple[Config, RunDirectory],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    at: int,
) -> None:
    config_ = config(tmp_path)
    write = JsonLinesWriter.scalars

    def write_then_signal(self: JsonLinesWriter, step: int, values: dict) -> None:
        write(self, step, values)
        if step == at and "train/loss" in values:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(JsonLinesWriter, "scalars", write_then_signal)
        expected = r"stopped after step \d of 9, which is saved"
        with stopping.listening(), pytest.raises(Stopped, match=expected) as stop:
            train(config_, quiet())
    assert stop.value.signal == number
    assert signal.getsignal(number) == before
    run = RunDirectory(Path(config_.runs_dir) / config_.name)
    newest = max(int(path.name) for path in run.checkpoints.iterdir())
    assert f"step {newest} of" in str(stop.value)
    assert newest in (at, at + 1)  # the step in progress is not thrown away
    assert_same_end(whole, (config_, train(config_, quiet())))


def test_steps_since_the_last_intact_checkpoint_are_trained_again(
    config: Callable[..., Config], whole: tuple[Config, RunDirectory], tmp_path: Path
) -> None:
    config_ = config(tmp_path)
    run = train(config_, quiet())
    shutil.rmtree(run.checkpoints / "9" / "opt_state")
    said = io.StringIO()
    assert_same_end(whole, (config_, train(config_, plain_console(file=said, width=300))))
    assert "the checkpoint of step 9 is damaged (" in said.getvalue()
    assert "using step 8" in said.getvalue()
    assert [path.name for path in (run.path / "damaged").iterdir()] == ["9-0"]


def test_a_loss_that_is_not_finite_stops_the_run(
    config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_ = config(tmp_path)
    batch = train_loop.training_batch

    def poisoned(*args: object, **settings: int) -> object:
        made = batch(*args, **settings)  # type: ignore[arg-type]
        if (settings["stage"], settings["step"]) == (1, 1):  # global step 7
            made = made._replace(weights=made.weights * np.float32(np.nan))
        return made

    monkeypatch.setattr(train_loop, "training_batch", poisoned)
    with pytest.raises(UserError) as error:
        train(config_, quiet())
    said = str(error.value)
    assert said.startswith("step 7: the loss is nan and the gradient's norm nan; training stops")
    assert "the checkpoint of step 6 is kept" in said
    run = RunDirectory(Path(config_.runs_dir) / config_.name)
    assert sorted(int(path.name) for path in run.checkpoints.iterdir()) == [5, 6]
    assert max(line["step"] for line in lines(run)) == 6
    with pytest.raises(UserError, match="step 7: the loss is nan"):  # the same again
        train(config_, quiet())


def test_a_checkpoint_belongs_to_the_stage_it_was_saved_in(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    config_ = config(tmp_path)
    assert [config_.stage_at(step) for step in (1, 5, 6, 9)] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="step 10 is past the end of the last stage, 9"):
        config_.stage_at(10)


def test_stages_take_consecutive_steps(config: Callable[..., Config], tmp_path: Path) -> None:
    assert [(s.begin, s.end) for s in config(tmp_path).spans] == [(0, 5), (5, 9)]


def test_layers_that_differ_train_and_are_swept(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    """A local layer with its own base, a scaled one, one without positions; query scales."""
    from rope_jax.config.sweep import SweepConfig
    from rope_jax.sweeps.run import sweep_run

    scaling = {"type": "yarn", "factor": 2.0, "query_scale": {"type": "logn"}, "beta_slow": 0.1}
    pattern = [
        {"sliding_window": 4, "base": 100.0, "scaling": {"type": "none"}},
        {},
        {"scaling": {"type": "drope"}},
    ]
    config_ = config(
        tmp_path,
        model={
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
        },
        rope={"train_length": 8, "scaling": scaling, "layer_pattern": pattern},
        stages=[{"steps": 4, "seq_len": 16, "batch_size": 4}],
    )
    said = plain_console(file=io.StringIO(), width=300)
    run = train(config_, said)
    text = said.file.getvalue()
    assert "layer 0: none, base 100; slowest" in text
    assert "layer 1: yarn, base 10,000; slowest" in text
    assert "queries × 1…1.33 (logn)" in text  # ln 16 / ln 8
    assert "layer 2: drope, base 10,000; no pair rotates" in text
    sweep = SweepConfig(
        lengths=(16,),
        scalings=("trained", {"type": "pi", "factor": "auto"}),
        max_documents=2,
        resamples=20,
    )
    sweep_run(run, config_, sweep, said)
    rows = (run.evals / "sweep" / "results.csv").read_text().splitlines()
    assert len(rows) == 1 + 2
    summary = json.loads((run.evals / "sweep" / "summary.json").read_text())
    assert summary["compilations"] == 1


def test_a_validation_loss_that_is_not_a_number_is_not_saved(
    config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss_sums = StageProgram.loss_sums
    monkeypatch.setattr(
        StageProgram,
        "loss_sums",
        lambda *arguments: (sums := loss_sums(*arguments))._replace(
            nll=sums.nll * np.float32("nan")
        ),
    )
    config_ = config(tmp_path)
    with pytest.raises(UserError, match=r"step 3: the validation loss is nan.*of step 2 is kept"):
        train(config_, quiet())
    run = RunDirectory(Path(config_.runs_dir) / config_.name)
    assert [path.name for path in run.checkpoints.iterdir()] == ["2"]


def token_file(config_: Config) -> Path:
    (folder,) = Path(config_.data.cache_dir or "").iterdir()
    return folder / "tokens"


def test_a_damaged_corpus_is_named_and_trains_the_same(
    config: Callable[..., Config],
    whole: tuple[Config, RunDirectory],
    tmp_path: Path,
) -> None:
    config_ = config(tmp_path)
    open_corpus(config_.data, ByteTokenizer())
    tokens = token_file(config_)
    written = tokens.read_bytes()
    tokens.write_bytes(bytes(len(written)))
    said = plain_console(file=io.StringIO(), width=400, force_terminal=True)
    run = train(config_, said)
    line = f"{tokens}: is damaged (its checksum is not that in SHA256SUMS); writing tokens "
    assert said.file.getvalue().count(f"\x1b[33m{line}again") == 1
    assert lines(run) == lines(whole[1])
    assert tokens.read_bytes() == written


def test_tokens_that_change_while_a_run_is_on_end_it(
    config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_ = config(tmp_path)
    tokens, batch = [], train_loop.training_batch

    def after_damage(*arguments, stage, step, **settings):
        if (stage, step) == (1, 1):
            tokens.append(token_file(config_))
            tokens.append(tokens[0].read_bytes())
            tokens[0].write_bytes(bytes(len(tokens[1])))
        return batch(*arguments, stage=stage, step=step, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(train_loop, "training_batch", after_damage)
        with pytest.raises(UserError, match=r"^data\.cache_dir: .*/tokens was changed while"):
            train(config_, quiet())
    run = train(config_, quiet())
    assert tokens[0].read_bytes() == tokens[1]
    assert [line["step"] for line in lines(run) if "train/loss" in line] == [2, 4, 5, 6, 8, 9]
