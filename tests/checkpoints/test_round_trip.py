"""Weights and configs that are written and read back are the same, for every family and type."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from rope_jax.checkpoints.exporting import describe
from rope_jax.checkpoints.families import FAMILIES
from rope_jax.checkpoints.files import CheckpointFiles
from rope_jax.checkpoints.opening import same_bits
from rope_jax.checkpoints.reading import read_description
from rope_jax.checkpoints.weights import tensors_of, write_weights
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params, language_model
from rope_jax.model.resolve import resolve_run
from tests.checkpoints.cases import FAMILIES as GOLDEN
from tests.checkpoints.cases import read_cases
from tests.checkpoints.folders import EACH_FAMILY, config_of, golden_case, loaded, write_case

SHARD = 2**14  # bytes: a golden model takes several


def stored(folder: Path) -> dict[str, Any]:
    """Return all tensors of a folder."""
    return {
        name: array
        for path in folder.glob("*.safetensors")
        for name, array in load_file(path).items()
    }


def assert_same(one: Params, other: Params) -> None:
    a, b = flatten_dict(one, sep="/"), flatten_dict(other, sep="/")
    assert a.keys() == b.keys()
    assert all(same_bits(np.asarray(a[path]), np.asarray(b[path])) for path in a)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_weights_are_read_back_bit_for_bit(family: str, dtype: str, tmp_path: Path) -> None:
    """From a file of each type; float16 is kept as float32, which holds all of its numbers."""
    case = golden_case(family, "default")
    (tmp_path / "config.json").write_text(case.config)
    tensors = {name: weight.astype(dtype) for name, weight in case.weights().items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    kept = "float32" if dtype == "float16" else dtype
    config, params = loaded(tmp_path, kept)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {kept}

    again = tmp_path / "again"
    again.mkdir()
    (again / "config.json").write_text(case.config)
    write_weights(again, FAMILIES[family].rows(config.model), params, SHARD)
    files = sorted(again.glob("*.safetensors"))
    assert len(files) > 2
    index = json.loads((again / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(t.nbytes for t in stored(again).values())}
    assert index["weight_map"].keys() == tensors.keys()
    for path in files:
        with safe_open(path, framework="numpy") as file:
            assert file.metadata() == {"format": "pt"}
            assert {index["weight_map"][name] for name in file.keys()} == {path.name}  # noqa: SIM118

    found = stored(again)
    assert all(same_bits(found[name], t.astype(kept)) for name, t in tensors.items())
    assert_same(loaded(again, kept)[1], params)


def test_a_model_of_one_shard_has_no_index(tmp_path: Path) -> None:
    config, params = loaded(write_case(tmp_path / "in", golden_case("llama", "default")))
    (tmp_path / "out").mkdir()
    write_weights(tmp_path / "out", FAMILIES["llama"].rows(config.model), params)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]


def test_a_file_that_was_not_written_correctly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, params = loaded(write_case(tmp_path, golden_case("llama", "default")))

    def save_wrongly(tensors: dict[str, Any], path: Path, **settings: Any) -> None:
        wrong = tensors["model.norm.weight"].copy()
        wrong[3] = np.nextafter(wrong[3], np.float32(9))
        save_file(tensors | {"model.norm.weight": wrong}, path, **settings)

    monkeypatch.setattr("rope_jax.checkpoints.weights.save_file", save_wrongly)
    with pytest.raises(UserError) as caught:
        write_weights(tmp_path, FAMILIES["llama"].rows(config.model), params)
    assert str(caught.value) == (
        f"{tmp_path}/model.safetensors: model.norm.weight was not written correctly; try again"
    )


@pytest.mark.parametrize("family", GOLDEN)
def test_every_parameter_has_a_tensor(family: str) -> None:
    """In every golden model: its tensors, with their shapes, are those of transformers."""
    seen = set()
    for case in read_cases(family):
        config = config_of(read_description(json.loads(case.config), "config.json"))
        if config.model in seen:  # those that differ in their rotation only
            continue
        seen.add(config.model)
        model = language_model(resolve_run(config), config.model.vocab_size or 0)
        like = jax.eval_shape(lambda model=model: model.init(0))
        tensors = tensors_of(FAMILIES[family].rows(config.model), like)
        assert {name: t.shape for name, t in tensors.items()} == case.tensors, case.name


def meaning(config: Config) -> dict[str, Any]:
    """Return the model's fields, without defaults that follow from others."""
    model = config.model
    return model.model_dump() | {
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.heads_width,
        "query_pre_attn_scalar": model.query_pre_attn_scalar or model.heads_width,
    }


def assert_same_frequencies(one: Config, other: Config, name: str) -> None:
    """Inside and past the window. LongRoPE's m is written as a number, so settings may differ."""
    for length in (20, 3 * one.stages[0].seq_len):
        a, b = (c.rotary_layers.frequencies(c.rope.scaling, length) for c in (one, other))
        for expected, found in zip(a, b, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("family", GOLDEN)
def test_a_config_that_is_described_is_read_as_the_same_model(family: str) -> None:
    """By its own family, and by whichever expresses it: a tied Llama may be another's."""
    for case in read_cases(family):
        config = config_of(read_description(json.loads(case.config), "config.json"))
        window, vocab_size = config.stages[0].seq_len, config.model.vocab_size or 0
        for wanted in (family, None):
            own, keys = describe(config, config.rope.scaling, window, vocab_size, wanted)
            assert own.model_type == keys["model_type"]
            assert wanted is None or own.model_type == family
            description = read_description(json.loads(json.dumps(keys)), case.name)
            assert description.window == window, case.name
            again = config_of(description)
            assert meaning(again) == meaning(config), case.name
            layers = config.model.num_hidden_layers
            slides = [
                [c.sliding_windows[i % len(c.sliding_windows)] for i in range(layers)]
                for c in (again, config)
            ]
            assert slides[0] == slides[1], case.name
            assert_same_frequencies(config, again, case.name)


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    """So that a tensor's file is read once, however the index orders them."""
    config, params = loaded(write_case(tmp_path / "in", golden_case("qwen2", "default")))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    write_weights(tmp_path / "out", FAMILIES["qwen2"].rows(config.model), params, SHARD)
    files = CheckpointFiles(tmp_path / "out")
    paths = [files.tensors[name].file for name, _ in files.read(files.tensors)]
    assert paths == sorted(paths)
