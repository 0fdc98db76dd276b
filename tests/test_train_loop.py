"""Training end to end on a tiny model: what a run leaves behind, and that resuming is exact."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from rope_jax.checkpoint import Checkpoints
from rope_jax.config import load
from rope_jax.errors import UserError
from rope_jax.run_directory import RunDirectory
from rope_jax.schema import Config
from rope_jax.train_loop import Trainer, stage_spans, train

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def config(folder: Path, **changes: object) -> Config:
    """Two stages, the second longer and with PI; a text of its own."""
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for index in range(6):
        words = rng.choice(["rope ", "turns ", "slow", "fast", "\n", "pair "], 200)
        (texts / f"{index}.txt").write_text("".join(words))
    raw = {
        "name": "tiny",
        "runs_dir": str(folder / "runs"),
        "log_every_steps": 2,
        "model": {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "data": {
            "type": "text",
            "files": [str(texts / "*.txt")],
            "validation_fraction": 0.2,
            "test_fraction": 0.2,
            "cache_dir": str(folder / "cache"),
        },
        "optim": {"warmup_steps": 2},
        "stages": [
            {"steps": 5, "seq_len": 16, "batch_size": 4},
            {"steps": 4, "seq_len": 32, "batch_size": 2, "scaling": {"type": "pi", "factor": 2}},
        ],
        "validation": {"every_steps": 3, "batches": 2},
        "checkpoint": {"every_steps": 2, "keep": 2},
    }
    return Config.model_validate(raw | changes)


def quiet() -> Console:
    return Console(quiet=True)


def final_params(run: RunDirectory, config_: Config) -> dict:
    from rope_jax.checkpoint import newest_params
    from rope_jax.model import LanguageModel

    model = LanguageModel(config_.model, 257)
    step, params = newest_params(
        run.checkpoints, jax.eval_shape(lambda: model.init(0)), tell=pytest.fail
    )
    assert step == 9
    return params


def lines(run: RunDirectory) -> list[dict]:
    read = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    # speed is measured, not computed
    return [{k: v for k, v in line.items() if "throughput" not in k} for line in read]


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, compiled_quickly: None
) -> tuple[Config, RunDirectory]:
    """A run that nothing interrupted."""
    config_ = config(tmp_path_factory.mktemp("whole"))
    return config_, train(config_, quiet())


def test_a_run_directory_holds_what_it_should(whole: tuple[Config, RunDirectory]) -> None:
    config_, run = whole
    assert load(Config, run.config_file) == config_
    environment = json.loads(run.environment_file.read_text())
    assert environment["packages"]["jax"] == jax.__version__
    assert len(environment["corpus"]["fingerprint"]) == 64
    assert sorted(int(p.name) for p in run.checkpoints.iterdir()) == [8, 9]
    assert len(list(run.path.glob("events.out.tfevents.*"))) == 1


def test_metrics_are_logged_at_the_steps_asked_for(whole: tuple[Config, RunDirectory]) -> None:
    logged = lines(whole[1])
    steps = [line["step"] for line in logged if "train/loss" in line]
    assert steps == [2, 4, 5, 6, 8, 9]  # every second, and each stage's last
    assert [line["step"] for line in logged if "validation/loss" in line] == [3, 5, 6, 9]
    # 4 × 16 tokens a step, then 2 × 32: the same; and all of the window's places are counted
    assert [line["train/tokens"] for line in logged if "train/tokens" in line] == [
        64 * step for step in steps
    ]
    last = next(line for line in logged if line["step"] == 9 and "train/loss" in line)
    shares = {k: v for k, v in last.items() if k.startswith("tokens_at/")}
    assert list(shares) == ["tokens_at/0-15", "tokens_at/16-31"]
    assert sum(shares.values()) == pytest.approx(1)
    mean = sum(v * last[k.replace("tokens_at", "train_loss_at")] for k, v in shares.items())
    assert mean == pytest.approx(last["train/loss"], rel=1e-5)


def test_the_loss_falls(whole: tuple[Config, RunDirectory]) -> None:
    losses = [line["validation/loss"] for line in lines(whole[1]) if "validation/loss" in line]
    assert losses[0] > losses[-1]
    assert losses[0] < np.log(257) + 0.1


def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    whole: tuple[Config, RunDirectory],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config_ = config(tmp_path)
    save = Checkpoints.save

    def save_then_stop(self: Checkpoints, step: int, state: object) -> None:
        save(self, step, state)  # type: ignore[arg-type]
        if step == 6:  # in the second stage
            self.close()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_then_stop)
        with pytest.raises(KeyboardInterrupt):
            train(config_, quiet())
    resumed = train(config_, quiet())
    for one, other in zip(
        jax.tree.leaves(final_params(whole[1], whole[0])),
        jax.tree.leaves(final_params(resumed, config_)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert lines(resumed) == lines(whole[1])


def test_a_finished_run_is_left_as_it_is(whole: tuple[Config, RunDirectory]) -> None:
    config_, run = whole
    before = lines(run)
    train(config_, quiet())
    assert lines(run) == before


def test_another_config_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    first = config(tmp_path)
    RunDirectory(Path(first.runs_dir) / first.name).prepare(first)
    second = config(tmp_path, seed=7, optim={"warmup_steps": 3})
    with pytest.raises(UserError, match=r"another seed, optim\.warmup_steps; give this one"):
        train(second, quiet())


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    config_ = config(tmp_path)
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="not empty and no run"):
        train(config_, quiet())
    assert [p.name for p in folder.iterdir()] == ["thesis.tex"]


def test_a_stage_longer_than_the_text_fails_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "run", lambda *_: pytest.fail("training began"))
    stages = [
        {"steps": 5, "seq_len": 16, "batch_size": 4},
        {"steps": 5, "seq_len": 100_000, "batch_size": 1},
    ]
    with pytest.raises(UserError, match=r"stages\[1\].seq_len: windows of 100000 tokens"):
        train(config(tmp_path, stages=stages), quiet())
    assert not (tmp_path / "runs").exists()  # so that the mended config is not refused


def test_a_text_that_changed_stops_the_run_from_going_on(
    whole: tuple[Config, RunDirectory],
) -> None:
    config_, run = whole
    text = Path(config_.data.files[0]).parent / "0.txt"  # type: ignore[union-attr]
    before, environment = text.read_text(), run.environment_file.read_text()
    text.write_text(before + "more")
    try:
        with pytest.raises(UserError, match="the corpus has changed since the run began"):
            train(config_, quiet())
    finally:
        text.write_text(before)
    assert run.environment_file.read_text() == environment


def test_one_text_is_enough_without_validation(tmp_path: Path) -> None:
    config_ = config(tmp_path, stages=[{"steps": 3, "seq_len": 16, "batch_size": 2}])
    data = config_.data.model_copy(
        update={
            "files": [str(tmp_path / "texts" / "0.txt")],
            "validation_fraction": 0.0,
            "test_fraction": 0.0,
        }
    )
    run = train(config_.model_copy(update={"data": data}), quiet())
    assert [line["step"] for line in lines(run)] == [2, 3]
    assert not any("validation/loss" in line for line in lines(run))


def test_a_checkpoint_belongs_to_the_stage_it_was_made_in(tmp_path: Path) -> None:
    config_ = config(tmp_path)
    assert [config_.stage_at(step) for step in (1, 5, 6, 9)] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="step 10 is past the last stage's end, 9"):
        config_.stage_at(10)


def test_stages_take_consecutive_steps(tmp_path: Path) -> None:
    assert [(s.begin, s.end) for s in stage_spans(config(tmp_path))] == [(0, 5), (5, 9)]
