"""Training in a run directory: which ones are refused, and which are continued."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rope_jax.config import resolve
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from rope_jax.model.cost import flops_per_token
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import Session
from rope_jax.training import run as training_run
from rope_jax.training.loop import Trainer
from rope_jax.training.run import describe_training, flops_after, train
from tests.training.conftest import Run, quiet


def directory(config: TrainingConfig) -> RunDirectory:
    return RunDirectory(Path(config.runs_dir) / config.name)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing before a run begins, for tests in which it does not begin."""
    monkeypatch.setattr(training_run, "compile_stages", lambda *_, **__: None)


@pytest.mark.usefixtures("uncompiled")
def test_a_run_whose_checkpoints_were_deleted_is_refused(
    config: Callable[..., TrainingConfig], whole: Run, tmp_path: Path
) -> None:
    config_ = config(tmp_path)
    run = directory(config_)
    with run.prepared(config_, ByteTokenizer()):
        pass
    shutil.copy(whole[1].metrics_file, run.metrics_file)
    with pytest.raises(UserError, match=r"holds no checkpoint, and metrics\.jsonl has step 9"):
        train(config_, quiet())
    assert run.metrics_file.read_bytes() == whole[1].metrics_file.read_bytes()


@pytest.mark.usefixtures("uncompiled")
def test_folders_that_cannot_become_a_run_are_refused(
    config: Callable[..., TrainingConfig], tmp_path: Path
) -> None:
    config_ = config(tmp_path)
    folder = directory(config_).path
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match=r"runs/tiny: cannot be written \(Not a directory\)"):
        train(config_, quiet())
    (tmp_path / "runs").unlink()
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="neither empty nor a run"):
        train(config_, quiet())
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    # a process that was killed before it wrote its config does not block the folder
    (folder / "thesis.tex").rename(folder / ".config.tmp.yaml")
    (folder / ".lock").touch()
    with directory(config_).prepared(config_, ByteTokenizer()):
        assert directory(config_).load_config() == config_
        in_use = pytest.raises(UserError, match="another process is training in it; wait for it")
        with in_use, directory(config_).prepared(config_, ByteTokenizer()):
            pass
    other = config(tmp_path, seed=7, optim={"warmup_steps": 3})
    with pytest.raises(UserError, match=r"another seed, optim\.warmup_steps; give this one"):
        train(other, quiet())


def test_a_finished_run_is_not_changed(whole: Run) -> None:
    config_, run = whole

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    before = files()
    shown = io.StringIO()
    train(config_, plain_console(file=shown, width=300, force_terminal=True, no_color=True))
    assert shown.getvalue().endswith(f"{run.path}: already trained to step 9\n")
    assert "compiling" not in shown.getvalue()
    assert "9/9" not in shown.getvalue()
    assert files() == before


def test_auto_products_are_decided_when_a_run_begins(
    config: Callable[..., TrainingConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = config(tmp_path).model.model_dump() | {"product_dtype": "auto"}
    asked = config(tmp_path, model=fields)

    def recorded(run: RunDirectory, *, has_amx: bool) -> TrainingConfig:
        monkeypatch.setattr(resolve, "_multiplies_bfloat16", lambda: has_amx)
        return Session(run, asked, quiet()).recorded

    begun = recorded(directory(asked), has_amx=True)
    assert begun.model.product_dtype == "bfloat16"
    run = directory(asked)
    with run.prepared(begun, ByteTokenizer()):
        pass
    # on another processor it goes on with the same products
    assert recorded(run, has_amx=False) == begun
    other = recorded(RunDirectory(tmp_path / "other"), has_amx=False)
    assert other.model.product_dtype is None


@pytest.mark.usefixtures("uncompiled")
def test_another_backend_goes_on_with_a_run(resumed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(Trainer, "run", lambda _, done, __: begun.append(done))
    model = resumed[0].model.model_copy(update={"attention": "blockwise"})
    run = train(resumed[0].model_copy(update={"model": model}), quiet())
    assert begun == [8]
    assert run.load_config().model.attention == "blockwise"


def test_a_stage_longer_than_the_text_fails_before_the_first_step(
    config: Callable[..., TrainingConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "run", lambda *_: pytest.fail("training began"))
    stages = [
        {"steps": 5, "seq_len": 16, "batch_size": 4},
        {"steps": 5, "seq_len": 20_000, "batch_size": 1},
    ]
    with pytest.raises(UserError, match=r"stages\[1\].seq_len: a window of 20000 tokens"):
        train(config(tmp_path, stages=stages), quiet())
    assert not (tmp_path / "runs").exists()  # so that the corrected config is not refused


def test_a_run_does_not_continue_on_changed_texts(whole: Run) -> None:
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


# What the overview says


def of_stages(*stages: dict, **sections: object) -> TrainingConfig:
    first = {"steps": 5, "seq_len": 16, "batch_size": 4}
    raw = {"name": "mine", "optim": {"warmup_steps": 1}, "stages": [first | s for s in stages]}
    return TrainingConfig.model_validate(raw | sections)


def test_the_estimate_counts_the_steps_that_are_left() -> None:
    config = of_stages({}, {"steps": 3, "seq_len": 32, "batch_size": 2})
    first, second = (64 * flops_per_token(config.model.spec(), 257, n) for n in (16, 32))
    left = [flops_after(done, config, 257) for done in (0, 4, 6, 8)]
    assert left == [5 * first + 3 * second, first + 3 * second, 2 * second, 0]


def test_windows_are_described_as_far_as_they_are_not_plain() -> None:
    mix = [{"task": "passkey", "share": 0.25}, {"task": "induction", "share": 0.125}]
    assert describe_training(of_stages({}, data={"type": "stdlib", "mix": mix})) == {
        "mix": "25% passkey, 12.5% induction",
        "training": [
            "5 steps × 4 windows × 16 tokens = 320 tokens",
            "none: slowest wavelength 35,330 tokens",
        ],
    }
    stage = {
        "scaling": {"type": "dynamic_pi"},
        "positions": {"type": "pose", "length": 64},
        "mixed": {"fraction": 0.25, "seq_len": 8},
        "documents": {"mask": "none"},
    }
    _, scaling, positions, mixed, documents = describe_training(of_stages(stage))["training"]
    assert "dynamic_pi: slowest wavelength" in scaling
    assert "frequencies × 0.25" in scaling  # it sees 64 tokens
    assert positions == "pose positions below 64"
    assert mixed == "1 of 4 rows: windows of 8 tokens, none"
    assert documents == "documents: mask none, positions reset"
