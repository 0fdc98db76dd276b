"""Training in a run directory: which ones are refused, and which are continued."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.loop import Trainer
from rope_jax.training.run import train

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def quiet() -> Console:
    return plain_console(quiet=True)


def lines(run: RunDirectory) -> list[dict]:
    return [json.loads(line) for line in run.metrics_file.read_text().splitlines()]


def test_a_run_whose_checkpoints_were_deleted_is_refused(
    config: Callable[..., Config], whole: tuple[Config, RunDirectory], tmp_path: Path
) -> None:
    config_ = config(tmp_path)
    run = RunDirectory(Path(config_.runs_dir) / config_.name)
    with run.prepared(config_, ByteTokenizer()):
        pass
    shutil.copy(whole[1].metrics_file, run.metrics_file)
    with pytest.raises(UserError, match=r"holds no checkpoint, and metrics\.jsonl has step 9"):
        train(config_, quiet())
    assert run.metrics_file.read_bytes() == whole[1].metrics_file.read_bytes()


def test_a_run_in_use_is_refused(config: Callable[..., Config], tmp_path: Path) -> None:
    config_ = config(tmp_path)
    other = RunDirectory(Path(config_.runs_dir) / config_.name)
    refused = pytest.raises(UserError, match="another process is training in it; wait for it")
    with other.prepared(config_, ByteTokenizer()), refused:
        train(config_, quiet())


def test_a_folder_that_cannot_be_created_is_reported(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match=r"runs/tiny: cannot be written \(Not a directory\)"):
        train(config(tmp_path), quiet())


def test_a_process_killed_before_it_wrote_its_config_does_not_block_the_folder(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    config_ = config(tmp_path)
    run = RunDirectory(Path(config_.runs_dir) / config_.name)
    run.path.mkdir(parents=True)
    (run.path / ".lock").touch()
    (run.path / ".config.tmp.yaml").write_text("name: ti")
    with run.prepared(config_, ByteTokenizer()):
        pass
    assert run.load_config() == config_


def test_a_finished_run_is_not_changed(whole: tuple[Config, RunDirectory]) -> None:
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


def test_names_are_shown_as_they_are(config: Callable[..., Config], tmp_path: Path) -> None:
    folder = str(tmp_path / "[red]x[/]" / "[/]:smile:")
    config_ = config(tmp_path, runs_dir=folder)
    shown = io.StringIO()
    console = plain_console(file=shown, width=500, force_terminal=True, no_color=True)
    run = train(config_, console)
    assert f"{folder}/tiny" in shown.getvalue()
    shutil.rmtree(run.checkpoints / "9" / "params")
    train(config_, console)
    assert f"{folder}/tiny/checkpoints: the checkpoint of step 9 is damaged (" in shown.getvalue()
    (run.path / "config.yaml").write_text("name: tiny\nstages: 3\n")
    with pytest.raises(UserError, match=r"\[red\]x\[/\]/\[/\]:smile:/tiny/config\.yaml: stages"):
        train(config_, console)


def test_another_config_in_the_same_directory_is_refused(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    first = config(tmp_path)
    with RunDirectory(Path(first.runs_dir) / first.name).prepared(first, ByteTokenizer()):
        pass
    second = config(tmp_path, seed=7, optim={"warmup_steps": 3})
    with pytest.raises(UserError, match=r"another seed, optim\.warmup_steps; give this one"):
        train(second, quiet())


def test_auto_products_are_decided_when_a_run_begins(
    config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_amx(has: bool) -> None:
        monkeypatch.setattr("rope_jax.model.resolve._multiplies_bfloat16", lambda: has)

    fields = config(tmp_path).model.model_dump() | {"product_dtype": "auto"}
    asked = config(tmp_path, model=fields)
    with_amx(True)
    run = train(asked, quiet())
    assert run.load_config().model.product_dtype == "bfloat16"
    # on another processor it goes on with the same products, and so does what starts from it
    with_amx(False)
    shutil.rmtree(run.checkpoints / "9")
    train(asked, quiet())
    assert lines(run)[-1]["step"] == 9
    other = {"name": "other", "init_from": str(run.path)}
    assert train(config(tmp_path, model=run.load_config().model, **other), quiet()).path.exists()
    begun = train(config(tmp_path, model=fields, name="without"), quiet())
    assert begun.load_config().model.product_dtype is None


def test_another_backend_goes_on_with_a_run(
    config: Callable[..., Config], tmp_path: Path, whole: tuple[Config, RunDirectory]
) -> None:
    run = RunDirectory(Path(shutil.copytree(whole[1].path, tmp_path / "runs" / "tiny")))
    shutil.rmtree(run.checkpoints / "9")
    fields = whole[0].model.model_dump()
    for backend in ("blockwise", "xla"):
        asked = config(tmp_path, model=fields | {"attention": backend})
        # its texts have the same content, but another folder
        asked = asked.model_copy(update={"data": whole[0].data, "runs_dir": str(tmp_path / "runs")})
        train(asked, quiet())
        assert lines(run)[-1]["step"] == 9
        assert run.load_config().model.attention == backend


def test_a_folder_that_is_not_a_run_is_refused(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    config_ = config(tmp_path)
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="neither empty nor a run"):
        train(config_, quiet())
    assert [p.name for p in folder.iterdir()] == ["thesis.tex"]


def test_a_stage_longer_than_the_text_fails_before_the_first_step(
    config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "run", lambda *_: pytest.fail("training began"))
    stages = [
        {"steps": 5, "seq_len": 16, "batch_size": 4},
        {"steps": 5, "seq_len": 20_000, "batch_size": 1},
    ]
    with pytest.raises(UserError, match=r"stages\[1\].seq_len: a window of 20000 tokens"):
        train(config(tmp_path, stages=stages), quiet())
    assert not (tmp_path / "runs").exists()  # so that the corrected config is not refused


def test_a_run_does_not_continue_on_changed_texts(
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


def test_one_text_is_enough_without_a_validation_split(
    config: Callable[..., Config], tmp_path: Path
) -> None:
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
