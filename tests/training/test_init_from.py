"""A run that starts from another run's checkpoint: what it takes, and what is refused."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from rope_jax.config.devices import MeshConfig
from rope_jax.config.inherit import load_training, training_config
from rope_jax.config.load import dump
from rope_jax.config.resolve import resolve_run
from rope_jax.config.tokenizer import FileTokenizerConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import Checkpoints
from rope_jax.training.init_from import Start, start_from
from rope_jax.training.program import Program
from rope_jax.training.run import train
from rope_jax.training.step import TrainState
from tests.rounded import rounded_copy
from tests.training.conftest import Run, quiet


@pytest.fixture
def source(whole: Run, tmp_path: Path) -> RunDirectory:
    """A copy of a run with the checkpoints 8 and 9; its second stage has 32 tokens and PI."""
    return RunDirectory(Path(shutil.copytree(whole[1].path, tmp_path / "runs" / "source")))


def extended(source: RunDirectory, start: Any = "", **changes: Any) -> TrainingConfig:
    """Return the config of a run of three steps at 64 tokens that starts from `source`."""
    raw = {
        "name": "more",
        "runs_dir": str(source.path.parent),
        "log_every_steps": 1,
        "init_from": start or str(source.path),
        "optim": {"warmup_steps": 0},
        "stages": [{"steps": 3, "seq_len": 64, "batch_size": 2}],
        "validation": {"every_steps": 3, "batches": 1},
        "checkpoint": {"every_steps": 2, "keep": 2},
    }
    return training_config(raw | changes, "C.yaml")


def begun(
    config: TrainingConfig, warn: Callable[[str], Any] = pytest.fail
) -> tuple[Start, Program]:
    assert config.init_from is not None
    program = Program(resolve_run(config), ByteTokenizer.vocab_size, Placement(MeshConfig()))
    corpus = open_corpus(config.data, ByteTokenizer())
    return start_from(config.init_from, program, corpus, warn), program


def restored(folder: Path, step: int, like: TrainState) -> TrainState:
    with contextlib.closing(Checkpoints(folder)) as checkpoints:
        return checkpoints.restore(step, like)


def assert_equal(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_alone_or_with_the_optimizers_moments_are_taken(source: RunDirectory) -> None:
    config = extended(source, f"{source.path}@8")
    assert config.rope.scaling.type == "pi"
    start, program = begun(config)
    saved = restored(source.checkpoints, 8, program.abstract_state)
    assert_equal(start.state.params, saved.params)
    assert_equal(start.state.opt_state, program.optimizer.init(saved.params))
    assert start.origin["step"] == 8
    shardings = jax.tree.map(lambda leaf: leaf.sharding, start.state)
    assert jax.tree.leaves(shardings) == jax.tree.leaves(program.state_shardings())

    (state, _), _ = begun(extended(source, {"run": str(source.path), "optimizer": True}))
    saved = restored(source.checkpoints, 9, program.abstract_state)
    assert_equal(state.params, saved.params)

    def part(state: TrainState, kind: type) -> Any:
        leaves = jax.tree.leaves(state.opt_state, is_leaf=lambda s: isinstance(s, kind))
        (found,) = [leaf for leaf in leaves if isinstance(leaf, kind)]
        return jax.device_get(found)

    moments = part(state, optax.ScaleByAdamState)
    assert_equal(moments, part(saved, optax.ScaleByAdamState))
    assert moments.count == 9
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(moments.mu)) > 0
    # the schedule starts anew
    assert part(saved, optax.ScaleByScheduleState).count == 9
    assert part(state, optax.ScaleByScheduleState).count == 0


def test_weights_kept_in_bfloat16_become_float32(whole: Run, tmp_path: Path) -> None:
    source, kept, params = rounded_copy(whole[1], whole[0], tmp_path / "runs")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(jax.numpy.bfloat16)}
    config = extended(source)
    assert config.model.param_dtype == "float32"
    start, program = begun(config)
    assert start.origin["step"] == 0
    exact = jax.tree.map(lambda leaf: leaf.astype(np.float32), params)
    assert_equal(start.state.params, exact)
    types = jax.tree.map(lambda leaf: (leaf.dtype, leaf.sharding), start.state)
    abstract = jax.tree.map(lambda leaf: (leaf.dtype, leaf.sharding), program.abstract_state)
    assert jax.tree.leaves(types) == jax.tree.leaves(abstract)

    # the fingerprint is that of the stored bits: the same numbers in float32 have another
    twin, _, _ = rounded_copy(whole[1], whole[0], tmp_path / "twin", dtype="float32")
    again, _ = begun(extended(twin))
    assert_equal(again.state.params, start.state.params)
    assert again.origin["parameters"] != start.origin["parameters"]

    with pytest.raises(UserError, match=r"^model\.param_dtype: bfloat16 is for models that"):
        train(kept, quiet())


def test_a_run_starts_where_its_source_ended_and_goes_on_without_it(
    source: RunDirectory, tmp_path: Path
) -> None:
    config = extended(source)
    whole = train(config, quiet())
    logged = [json.loads(line) for line in whole.metrics_file.read_text().splitlines()]
    steps = [line for line in logged if "train/loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert steps[0]["train/learning_rate"] == pytest.approx(3e-3)  # of its own schedule
    before = json.loads(source.metrics_file.read_text().splitlines()[0])["train/loss"]
    assert steps[0]["train/loss"] < before - 0.01  # not that of fresh weights

    origin = json.loads(whole.environment_file.read_text())["init_from"]
    assert (origin["run"], origin["step"], origin["optimizer"]) == (str(source.path), 9, False)
    assert len(origin["parameters"]) == 16

    # as if it had been killed at step 2, and the source deleted then
    metrics, environment = whole.metrics_file.read_bytes(), whole.environment_file.read_bytes()
    shutil.rmtree(whole.checkpoints / "3")
    shutil.rmtree(source.path)
    (tmp_path / "again.yaml").write_text(dump(config))
    assert load_training(tmp_path / "again.yaml") == config
    train(load_training(whole.config_file), quiet())
    assert whole.metrics_file.read_bytes() == metrics
    assert whole.environment_file.read_bytes() == environment

    # without a checkpoint of its own, it needs the source
    shutil.rmtree(whole.path)
    with pytest.raises(UserError, match=r"init_from: .*source: not a run directory"):
        train(config, quiet())
    assert not whole.path.exists()


def test_a_damaged_checkpoint_is_refused_and_stays(source: RunDirectory) -> None:
    config = extended(source)
    shutil.rmtree(source.checkpoints / "9" / "fingerprint")
    damaged = rf"^init_from: {source.checkpoints}: the .* step 9 is damaged .*another step \(8\)$"
    with pytest.raises(UserError, match=damaged):
        train(config, quiet())
    assert (source.checkpoints / "9").exists()
    assert not (source.path / "damaged").exists()
    assert not (source.path.parent / "more").exists()


def test_a_source_that_does_not_fit_is_refused(source: RunDirectory) -> None:
    config = extended(source)
    model = config.model.model_copy(update={"intermediate_size": 32})
    with pytest.raises(UserError, match=r"model\.intermediate_size is 24 there and 32 here"):
        train(config.model_copy(update={"model": model}), quiet())
    start = {"run": str(source.path), "optimizer": True}
    with pytest.raises(UserError, match=r"^init_from\.optimizer: .* has no moments of what is"):
        train(extended(source, start, optim={"warmup_steps": 0, "lora": {}}), quiet())
    text = source.config_file.read_text()
    source.config_file.write_text(text.replace("base: 10000.0", "base: 20000.0"))
    with pytest.raises(UserError, match=r"has another rope\.base than the one that the checkpoint"):
        train(extended(source), quiet())


def test_other_texts_than_the_sources_are_warned_of(source: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for index in range(6):
        (tmp_path / "texts" / f"{index}.txt").write_text(f"{index} other text " * 40)
    data = {"files": [str(tmp_path / "texts" / "*.txt")]}
    said: list[str] = []
    begun(extended(source, data=data), said.append)
    assert said[0].startswith(f"init_from: {source.path} was trained on another corpus: what it")


def test_seeds_of_an_extension_are_one_experiment(source: RunDirectory) -> None:
    """Runs that start from demo-s0 and demo-s1, and differ in their seed, are compared as seeds."""
    from rope_jax.comparison.read import _experiment

    def experiment(start: str, **changes: Any) -> str:
        run = source.path.rename(source.path.with_name(start))
        config = extended(RunDirectory(run), **changes)
        run.rename(source.path)
        own = FileTokenizerConfig(path=str(run / "tokenizer.json"))  # as one of BPE is inherited
        return _experiment(config.model_copy(update={"tokenizer": own}))

    first = experiment("demo-s0", seed=0, name="more-s0")
    assert experiment("demo-s1", seed=1, name="more-s1", sweep={}) == first
    assert experiment("other-s1", seed=1, name="more-s1") != first
