"""A tiny run with checkpoints, and sweeps of it."""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imsave

from rope_jax.config.load import validate
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.data.batches import Batch
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.run import sweep_run
from rope_jax.training.run import train
from rope_jax.training.step import LossSums, StepMetrics, TrainState, TrainStep, bucket_edges

Run = tuple[RunDirectory, TrainingConfig]
SMALL = {"hidden_size": 16, "intermediate_size": 24}
SMALL |= {"num_hidden_layers": 1, "num_attention_heads": 2}
STAGE = {"steps": 2, "seq_len": 16, "batch_size": 4}


def growing_step(model: Any, *_: Any, out_shardings: Any, **__: Any) -> TrainStep:
    """Return a training step that compiles at once: it learns nothing, and all weights grow."""

    def step(state: TrainState, batch: Batch, rotary: Any) -> tuple[TrainState, StepMetrics]:
        params = jax.tree.map(lambda x: np.float32(1.1) * x, state.params)
        sums = no_loss(model, params, batch, rotary)
        return state._replace(params=params), StepMetrics(sums, sums.nll[0])

    return jax.jit(step, donate_argnums=0, out_shardings=out_shardings)


def no_loss(model: Any, params: Any, batch: Batch, rotary: Any, **_: Any) -> LossSums:
    ones = jnp.ones(len(bucket_edges(batch.tokens.shape[1])), jnp.float32)
    return LossSums(ones, ones)


def trained(
    folder: Path,
    stages: list[dict] | None = None,
    texts: Sequence[str] | None = None,
    **settings: object,
) -> Run:
    rng = np.random.default_rng(0)
    words = ["rope ", "turns ", "slow ", "fast ", "pair\n"]
    (folder / "texts").mkdir()
    for index, text in enumerate(texts or ["".join(rng.choice(words, 150)) for _ in range(12)]):
        (folder / "texts" / f"{index}.txt").write_text(text)
    data = {"type": "text", "files": [str(folder / "texts" / "*.txt")]}
    data |= {"validation_fraction": 0.2, "test_fraction": 0.4, "cache_dir": str(folder / "cache")}
    raw = {"name": "tiny", "runs_dir": str(folder / "runs"), "model": SMALL, "data": data}
    raw |= {"optim": {"warmup_steps": 0}, "stages": stages or [STAGE]}
    config = TrainingConfig.model_validate(raw | settings)
    return train_nothing(config), config


def train_nothing(config: TrainingConfig, **console: Any) -> RunDirectory:
    """Make a run whose checkpoints differ, without compiling what learns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rope_jax.training.program.make_train_step", growing_step)
        patch.setattr("rope_jax.training.program.loss_sums", no_loss)
        return train(config, plain_console(**console or {"quiet": True}))


def swept(run: Run, again: bool = False, **settings: object) -> tuple[Path, str]:
    """Sweep; return the folder and what was printed."""
    raw = {"lengths": [16, 64], "resamples": 50, "scalings": ["trained", "dynamic_ntk"]}
    said = plain_console(file=io.StringIO(), width=200)
    config = validate(SweepConfig, raw | settings, "test")
    sweep_run(*run, config, said, again=again)
    return run[0].evals / config.name, said.file.getvalue()


def rows(folder: Path) -> list[dict]:
    """Read results.jsonl, without the seconds."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Run:
    return trained(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def blank_figures() -> Iterator[None]:
    """Save figures as blank images, for a module whose sweeps are not about them."""

    def blank(figure: object, path: Path) -> None:
        imsave(path, np.zeros((2, 2, 3)), format="png")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rope_jax.plots.saving.write_figure", blank)
        yield
