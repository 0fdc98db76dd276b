"""Weights and configs that are written and read back are the same, for every family and type."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from rope_jax.checkpoints.describing import describe
from rope_jax.checkpoints.families import FAMILIES
from rope_jax.checkpoints.files import OTHER_PARTS, CheckpointFiles
from rope_jax.checkpoints.opening import without_prefix
from rope_jax.checkpoints.reading import read_description
from rope_jax.checkpoints.tensors import tensors_of
from rope_jax.checkpoints.weights import shapes_of, write_weights
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.training import TrainingConfig
from tests.checkpoints.cases import FAMILIES as GOLDEN
from tests.checkpoints.cases import read_cases
from tests.checkpoints.folders import (
    EACH_FAMILY,
    assert_same,
    config_of,
    golden_case,
    loaded,
    windows_of,
    write_case,
)

SHARD = 2**14  # bytes: a golden model takes several


def stored(folder: Path) -> dict[str, Any]:
    """Return all tensors of a folder."""
    return {
        name: array
        for path in folder.glob("*.safetensors")
        for name, array in load_file(path).items()
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_weights_are_read_back_bit_for_bit(family: str, dtype: str, tmp_path: Path) -> None:
    """From a file of each type; float16 is kept as float32, which holds all of its numbers.

    So are a router's bias and a delta net's decays, whatever the type of the model's weights.
    """
    case = golden_case(family)
    (tmp_path / "config.json").write_text(case.config)
    tensors = {name: weight.astype(dtype) for name, weight in case.weights().items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    kept = "float32" if dtype == "float16" else dtype
    config, params = loaded(tmp_path, kept)
    wide = "correction_bias", "A_log", "dt_bias"
    types = {name: "float32" if name.endswith(wide) else kept for name in tensors}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == set(types.values())

    again = tmp_path / "again"
    again.mkdir()
    (again / "config.json").write_text(case.config)
    write_weights(again, FAMILIES[family].rows(config.model), config.model.stacks, params, SHARD)
    files = sorted(again.glob("*.safetensors"))
    assert len(files) > 2
    index = json.loads((again / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(t.nbytes for t in stored(again).values())}
    assert index["weight_map"].keys() == tensors.keys()
    for path in files:
        with safe_open(path, framework="numpy") as file:
            assert file.metadata() == {"format": "pt"}
            assert {index["weight_map"][name] for name in file.keys()} == {path.name}  # noqa: SIM118

    assert_same(stored(again), {name: t.astype(types[name]) for name, t in tensors.items()})
    assert_same(loaded(again, kept)[1], params)
    # so that a tensor's file is read once, however the index orders them
    opened = CheckpointFiles(again)
    paths = [opened.tensors[name].file for name, _ in opened.read(opened.tensors)]
    assert paths == sorted(paths)


def test_a_model_of_one_shard_has_no_index(tmp_path: Path) -> None:
    config, params = loaded(write_case(tmp_path / "in", golden_case("llama")))
    (tmp_path / "out").mkdir()
    write_weights(
        tmp_path / "out", FAMILIES["llama"].rows(config.model), config.model.stacks, params
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("family", GOLDEN)
def test_every_parameter_has_a_tensor(family: str) -> None:
    """In every golden model: its tensors, with their shapes, are those of transformers."""
    seen = set()
    for case in read_cases(family):
        description = read_description(json.loads(case.config), "config.json")
        config = config_of(description)
        if config.model in seen:  # those that differ in their rotation only
            continue
        seen.add(config.model)
        model = language_model(resolve_run(config), config.model.vocab_size or 0)
        shapes = shapes_of(jax.eval_shape(lambda model=model: model.init(0)))
        tensors = tensors_of(description.family.rows(config.model), shapes, config.model.stacks)
        wanted = {without_prefix(n): x for n, x in case.tensors.items() if not OTHER_PARTS.match(n)}
        assert {name: t.shape for name, t in tensors.items()} == wanted, case.name


def meaning(config: TrainingConfig) -> dict[str, Any]:
    """Return the model's fields, without defaults that follow from others."""
    model = config.model
    return model.model_dump() | {
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.heads_width,
        "query_pre_attn_scalar": model.query_pre_attn_scalar or model.heads_width,
    }


@pytest.mark.parametrize("family", GOLDEN)
def test_a_config_that_is_described_is_read_as_the_same_model(family: str) -> None:
    """By its own family, and by whichever expresses it: a tied Llama may be another's.

    Also by the keys that transformers 4 reads.
    """
    for case in read_cases(family):
        config = config_of(read_description(json.loads(case.config), "config.json"))
        window, vocab_size = config.stages[0].seq_len, config.model.vocab_size or 0
        for wanted in (family, None):
            own, keys = describe(config, config.rope.scaling, window, vocab_size, wanted)
            assert own.model_type == keys["model_type"]
            assert wanted is None or own.model_type == family
            for form in (keys, {k: x for k, x in keys.items() if k != "rope_parameters"}):
                description = read_description(json.loads(json.dumps(form)), case.name)
                assert description.window == window, case.name
                again = config_of(description)
                assert meaning(again) == meaning(config), case.name
                assert windows_of(again) == windows_of(config), case.name
                a, b = (
                    c.rotary_layers.query_scale(c.rope.scaling, np.arange(3 * window)[None])
                    for c in (config, again)
                )
                np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=case.name)
                # Inside and past the window. LongRoPE's m is a number, so settings may differ.
                for length in (20, 3 * window):
                    a, b = (
                        c.rotary_layers.frequencies(c.rope.scaling, length) for c in (config, again)
                    )
                    for expected, found in zip(a, b, strict=True):
                        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=case.name)
