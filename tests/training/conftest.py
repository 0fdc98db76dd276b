"""A tiny run of two stages, and one such run that was trained without interruption."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.run import train

Run = tuple[TrainingConfig, RunDirectory]
STAGES = [
    {"steps": 5, "seq_len": 16, "batch_size": 4},
    {"steps": 4, "seq_len": 32, "batch_size": 2, "scaling": {"type": "pi", "factor": 2}}
    | {"learning_rate": 1e-3},
]


def quiet() -> Console:
    return plain_console(quiet=True)


def tiny(folder: Path, **changes: object) -> TrainingConfig:
    """Make a config of two stages, the second longer and with PI, on texts in `folder`."""
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
            "attention": "xla",  # traced in half the time of the default
        },
        "data": {
            "type": "text",
            "files": [str(texts / "*.txt")],
            "validation_fraction": 0.2,
            "test_fraction": 0.2,
            "cache_dir": str(folder / "cache"),
        },
        "optim": {"warmup_steps": 2},
        "stages": STAGES,
        "validation": {"every_steps": 3, "batches": 2},
        "checkpoint": {"every_steps": 2, "keep": 2},
    }
    return TrainingConfig.model_validate(raw | changes)


@pytest.fixture(scope="session")
def config() -> Callable[..., TrainingConfig]:
    """Make the config of the tiny run: config(folder, **other settings)."""
    return tiny


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run that was not interrupted, which tests must leave as it is."""
    config = tiny(tmp_path_factory.mktemp("whole"))
    return config, train(config, quiet())


@pytest.fixture
def copied(whole: Run, tmp_path: Path) -> Run:
    """Return a copy of that run."""
    config = whole[0].model_copy(update={"runs_dir": str(tmp_path / "runs")})
    return config, RunDirectory(Path(shutil.copytree(whole[1].path, tmp_path / "runs" / "tiny")))


@pytest.fixture
def resumed(copied: Run) -> Run:
    """Return a copy of that run of which the last step is left."""
    shutil.rmtree(copied[1].checkpoints / "9")
    return copied
