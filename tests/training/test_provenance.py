"""A run is continued and swept with the files it was trained with, or something is said."""

import io
import json
import shutil
from pathlib import Path

import pytest

from rope_jax.config.load import load
from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.data.storage import Corpus, open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.provenance import check_provenance, describe_gaps
from rope_jax.training.run import train

Run = tuple[Config, RunDirectory, Corpus]


@pytest.fixture
def run(whole: tuple[Config, RunDirectory], tmp_path: Path) -> Run:
    """A copy of a finished run."""
    config, run = whole
    copy = shutil.copytree(run.path, tmp_path / "runs" / config.name)
    config = config.model_copy(update={"runs_dir": str(tmp_path / "runs")})
    return config, RunDirectory(copy), open_corpus(config.data, ByteTokenizer())


def without_records(folder: RunDirectory) -> None:
    """Rewrite the checkpoints' records as an early version wrote them."""
    for checkpoint in folder.checkpoints.iterdir():
        record = checkpoint / "fingerprint" / "metadata"
        content = json.loads(record.read_text())
        record.write_text(json.dumps({k: content[k] for k in ("params", "opt_state")}))


@pytest.mark.parametrize("damage", ["{", "[]", "", None, "another corpus"])
def test_a_damaged_environment_does_not_condemn_the_checkpoints(
    run: Run, damage: str | None
) -> None:
    config, folder, corpus = run
    if damage == "another corpus":
        damage = json.dumps({"corpus": {"fingerprint": "0" * 64}})
    folder.environment_file.unlink()
    if damage is not None:
        folder.environment_file.write_text(damage)
    warnings: list[str] = []
    check_provenance(folder, config, corpus, warnings.append)
    (warning,) = warnings
    assert "environment.json: missing or damaged; the checkpoints' own record shows" in warning


def test_the_environment_is_written_anew(run: Run) -> None:
    config, folder, corpus = run
    folder.environment_file.unlink()
    said = io.StringIO()
    train(config, plain_console(file=said, width=1000))
    assert "already trained" in said.getvalue()
    assert folder.recorded_corpus() == corpus.fingerprint
    check_provenance(folder, config, corpus, pytest.fail)


def test_the_checkpoints_know_their_corpus(run: Run) -> None:
    config, folder, corpus = run
    folder.environment_file.unlink()
    object.__setattr__(corpus, "fingerprint", "0" * 64)
    with pytest.raises(UserError, match="the corpus has changed since the run began"):
        check_provenance(folder, config, corpus, warn=lambda _: None)


def test_without_any_record_of_the_corpus_nothing_is_guessed(run: Run) -> None:
    config, folder, corpus = run
    without_records(folder)
    check_provenance(folder, config, corpus, pytest.fail)
    folder.environment_file.unlink()
    with pytest.raises(UserError, match=r"no checkpoint records which corpus.*restore the file"):
        check_provenance(folder, config, corpus, pytest.fail)


def test_a_config_edited_after_training_is_not_swept(run: Run) -> None:
    config, folder, corpus = run
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
    config, folder, _ = run
    assert describe_gaps(folder, config, 9, True) is None
    lines = folder.metrics_file.read_text().splitlines(keepends=True)
    folder.metrics_file.write_text("".join(lines[kept]))
    said = describe_gaps(folder, config, 9, True)
    assert said is not None
    assert said.startswith(f"{folder.metrics_file}: lacks {lacks}")
    folder.metrics_file.unlink()
    assert "lacks train/loss of 6 of 6 steps" in str(describe_gaps(folder, config, 9, True))
