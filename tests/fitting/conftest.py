"""A tiny trained run with 2 layers and grouped-query attention, and fits of it."""

import io
from pathlib import Path

import pytest

from rope_jax.config.fit import FitConfig
from rope_jax.config.load import validate
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.fitting.run import fit_run
from rope_jax.runs.directory import RunDirectory
from tests.sweeps.conftest import SMALL, STAGE, blank_figures, trained

__all__ = ["blank_figures"]

WINDOW = 16
MODEL = SMALL | {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,  # so that attention is far from uniform
    "layers": "scanned",  # which compiles faster
}
TINY = {"length": 64, "steps": 4, "check_every": 2, "batch_tokens": 256, "warmup_steps": 0}
TINY |= {"max_documents": 4, "max_blocks": 1, "resamples": 20}


def fit_config(**settings: object) -> FitConfig:
    return validate(FitConfig, TINY | settings, "test")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, TrainingConfig]:
    folder = tmp_path_factory.mktemp("fitted")
    return trained(folder, [STAGE], model=MODEL, rope={"base": 100.0})


def fitted(run: tuple[RunDirectory, TrainingConfig], **settings: object) -> tuple[Path, str]:
    """Fit; return the folder and what was printed."""
    said = plain_console(file=io.StringIO(), width=200)
    folder = fit_run(*run, fit_config(**settings), said)
    return folder, said.file.getvalue()
