"""A run is continued and swept with the files it was trained with, or something is said."""

import io
import json
import shutil
from pathlib import Path

import pytest

from rope_jax.config.load import load
from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.provenance import check_provenance
from rope_jax.training.run import train

pytestmark = pytest.mark.usefixtures("compiled_quickly")

Run = tuple[Config, RunDirectory]


@pytest.fixture
def run(whole: Run, tmp_path: Path) -> Run:
    """A copy of a finished run."""
    config, run = whole
    copy = shutil.copytree(run.path, tmp_path / "runs" / config.name)
    return config.model_copy(update={"runs_dir": str(tmp_path / "runs")}), RunDirectory(copy)


def trained(config: Config) -> str:
    """Continue a run and return what was said."""
    said = io.StringIO()
    train(config, plain_console(file=said, width=1000))
    return said.getvalue()


def test_a_checkpoint_under_the_name_of_another_step_is_damaged(run: Run) -> None:
    config, folder = run
    shutil.rmtree(folder.checkpoints / "9")
    shutil.copytree(folder.checkpoints / "8", folder.checkpoints / "9")
    assert "step 9 is damaged (it is the checkpoint of step 8); using step 8" in trained(config)


def test_a_file_in_a_steps_place_is_reported_and_kept(run: Run, whole: Run) -> None:
    config, folder = run
    shutil.rmtree(folder.checkpoints / "9")
    (folder.checkpoints / "9").write_text("mine")
    assert "the checkpoint of step 9 is damaged (it is not a folder); using step 8" in trained(
        config
    )
    assert (folder.path / "damaged" / "9-0").read_text() == "mine"
    assert folder.metrics_file.read_bytes() == whole[1].metrics_file.read_bytes()


@pytest.mark.parametrize("damage", ["{", "[]", "", None])
def test_a_damaged_environment_does_not_condemn_the_checkpoints(
    run: Run, damage: str | None
) -> None:
    config, folder = run
    fingerprint = folder.recorded_corpus()
    folder.environment_file.unlink()
    if damage is not None:
        folder.environment_file.write_text(damage)
    assert "environment.json: missing or damaged; the checkpoints' own record shows" in trained(
        config
    )
    assert folder.recorded_corpus() == fingerprint  # written anew
    assert "environment.json" not in trained(config)


def test_a_changed_environment_does_not_condemn_the_checkpoints(
    run: Run,
) -> None:
    config, folder = run
    content = json.loads(folder.environment_file.read_text())
    fingerprint = content["corpus"]["fingerprint"]
    content["corpus"]["fingerprint"] = "0" + fingerprint[1:] if fingerprint[0] != "0" else "1"
    folder.environment_file.write_text(json.dumps(content))
    assert "environment.json: missing or damaged; the checkpoints' own record" in trained(config)
    assert folder.recorded_corpus() == fingerprint


@pytest.mark.parametrize(
    "content", ["[" * 200_000, '{"corpus": ["x"], "config": {}, "params": []}']
)
def test_a_record_of_any_content_is_damage(run: Run, content: str) -> None:
    config, folder = run
    (folder.checkpoints / "9" / "fingerprint" / "metadata").write_text(content)
    assert "the checkpoint of step 9 is damaged (" in trained(config)


def test_checkpoints_damaged_one_after_the_other_are_all_kept(run: Run) -> None:
    config, folder = run
    (folder.path / "damaged" / "9-1").mkdir(parents=True)
    shutil.rmtree(folder.checkpoints / "9" / "params")
    assert "step 9 is damaged" in trained(config)
    assert {path.name for path in (folder.path / "damaged").iterdir()} == {"9-0", "9-1"}


def test_the_checkpoints_know_their_corpus(run: Run) -> None:
    config, folder = run
    folder.environment_file.unlink()
    corpus = open_corpus(config.data, ByteTokenizer())
    object.__setattr__(corpus, "fingerprint", "0" * 64)
    with pytest.raises(UserError, match="the corpus has changed since the run began"):
        check_provenance(folder, config, corpus, warn=lambda _: None)


def test_without_any_record_of_the_corpus_nothing_is_guessed(run: Run) -> None:
    config, folder = run
    folder.environment_file.unlink()
    for checkpoint in folder.checkpoints.iterdir():  # as an earlier version wrote them
        record = checkpoint / "fingerprint" / "metadata"
        content = json.loads(record.read_text())
        record.write_text(json.dumps({k: content[k] for k in ("params", "opt_state")}))
    with pytest.raises(UserError, match=r"no checkpoint records which corpus.*restore the file"):
        trained(config)


def test_records_of_an_earlier_version_are_read(run: Run) -> None:
    config, folder = run
    for checkpoint in folder.checkpoints.iterdir():
        record = checkpoint / "fingerprint" / "metadata"
        content = json.loads(record.read_text())
        record.write_text(json.dumps({k: content[k] for k in ("params", "opt_state")}))
    assert "already trained" in trained(config)


def test_a_changed_record_is_damage(run: Run) -> None:
    config, folder = run
    record = folder.checkpoints / "9" / "fingerprint" / "metadata"
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"corpus": "0" * 64}))
    assert "step 9 is damaged (its record is not the one that was saved)" in trained(config)


def test_a_config_edited_after_training_is_not_swept(run: Run) -> None:
    config, folder = run
    corpus = open_corpus(config.data, ByteTokenizer())
    text = folder.config_file.read_text()
    base = next(line for line in text.splitlines() if line.strip().startswith("base:"))
    folder.config_file.write_text(text.replace(base, base.replace(base.split()[-1], "777.0")))
    edited = load(Config, folder.config_file)
    with pytest.raises(UserError, match=r"config.yaml: has another rope.base than the one that"):
        check_provenance(folder, edited, corpus, pytest.fail)
    # what only says where or how often is free
    free = config.model_copy(update={"log_every_steps": 99, "runs_dir": "elsewhere"})
    check_provenance(folder, free, corpus, pytest.fail)


@pytest.mark.parametrize(
    ("kept", "lacks"),
    [
        (slice(0), "train/loss of 6 of 6 steps (2 to 9) and validation/loss of"),
        (slice(1, None), "train/loss of 1 of 6 steps (2), which this run has trained"),
        (slice(-1), "validation/loss of 1 of"),
    ],
)
def test_lines_missing_from_the_metrics_are_named(run: Run, kept: slice, lacks: str) -> None:
    config, folder = run
    lines = folder.metrics_file.read_text().splitlines(keepends=True)
    folder.metrics_file.write_text("".join(lines[kept]))
    said = trained(config)
    assert said.count("metrics.jsonl: lacks") == 1
    assert f"metrics.jsonl: lacks {lacks}" in said


def test_a_deleted_metrics_file_is_missed_and_a_whole_one_is_not(run: Run) -> None:
    config, folder = run
    assert "lacks" not in trained(config)
    folder.metrics_file.unlink()
    assert "metrics.jsonl: lacks train/loss of 6 of 6 steps" in trained(config)
