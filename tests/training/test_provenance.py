"""A run is continued and swept with the files it was trained with, or something is said."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from rope_jax.config.load import load
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.data.storage import Corpus, open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.provenance import changed_keys, check_provenance
from rope_jax.training.run import train
from tests.training.conftest import Run

OpenedRun = tuple[TrainingConfig, RunDirectory, Corpus]


@pytest.fixture
def run(copied: Run) -> OpenedRun:
    return *copied, open_corpus(copied[0].data, ByteTokenizer())


@pytest.mark.parametrize("damage", ["{", None])
def test_checkpoints_record_the_corpus_too(run: OpenedRun, damage: str | None) -> None:
    config, folder, corpus = run
    folder.environment_file.unlink()
    if damage is not None:
        folder.environment_file.write_text(damage)
    check_provenance(folder, config, corpus)
    said = io.StringIO()
    train(config, plain_console(file=said, width=1000))  # it is written anew
    assert "already trained" in said.getvalue()
    assert folder.recorded_corpus() == corpus.fingerprint
    folder.environment_file.unlink()
    object.__setattr__(corpus, "fingerprint", "1" * 64)
    with pytest.raises(UserError, match="the corpus has changed since the run began"):
        check_provenance(folder, config, corpus)


def test_a_config_edited_after_training_is_not_swept(run: OpenedRun) -> None:
    config, folder, corpus = run
    text = folder.config_file.read_text()
    base = next(line for line in text.splitlines() if line.strip().startswith("base:"))
    folder.config_file.write_text(text.replace(base, base.replace(base.split()[-1], "777.0")))
    edited = load(TrainingConfig, folder.config_file)
    with pytest.raises(UserError, match=r"config.yaml: has another rope.base than the one that"):
        check_provenance(folder, edited, corpus)
    # what only says where or how often is free
    free = config.model_copy(update={"log_every_steps": 99, "runs_dir": "elsewhere"})
    check_provenance(folder, free, corpus)


def test_the_first_steps_are_the_same_or_not(
    config: Callable[..., TrainingConfig], tmp_path: Path
) -> None:
    def made(
        *steps: int, optim: dict | None = None, size: int = 4, **later: object
    ) -> TrainingConfig:
        first, *others = ({"seq_len": 16, "batch_size": size, "steps": count} for count in steps)
        given = [first, *(other | later for other in others)]
        return config(tmp_path, stages=given, optim=optim or {})

    def same_until(new: TrainingConfig, old: TrainingConfig, step: int) -> bool:
        return not changed_keys(new, old, step)

    base = made(20)
    assert same_until(base, base, 20)
    assert not same_until(base, made(10), 20)  # it ended before
    assert not same_until(base, made(40), 2)  # 2 steps of warm-up became 4
    assert not same_until(base, made(40, optim={"warmup_steps": 2}), 5)  # the cosine is longer
    assert same_until(base, made(20, optim={"warmup_steps": 2}), 20)  # a tenth, spelled out
    wsd = {"schedule": "wsd", "warmup_steps": 2}
    short, long = made(20, optim=wsd), made(40, optim=wsd)
    # constant until the last fifth of 18 steps
    assert same_until(short, long, 16)
    assert not same_until(short, long, 17)
    assert not same_until(base, made(20, optim={"b1": 0.8}), 5)
    assert not same_until(base, made(20, size=2), 5)
    constant = {"warmup_steps": 2, "final_lr_fraction": 1}
    assert same_until(made(20, optim=constant), made(40, optim=constant), 20)
    more = made(20, 5, learning_rate=1e-3)
    assert same_until(base, more, 20)
    assert not same_until(base, more, 21)
    # without a rate of its own a stage lengthens the schedule before it
    assert not same_until(base, made(20, 5), 20)
