"""Weights of 8 and 4 bits against their definitions, element by element."""

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from rope_jax.checkpoints.files import INDEX, CheckpointFiles
from tests.checkpoints.folders import says

RNG = np.random.default_rng(0)
# e2m1: a sign, two bits of the exponent, one of the mantissa
FLOAT4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def files_of(folder: Path, tensors: dict[str, Any], **config: Any) -> CheckpointFiles:
    """Return a checkpoint whose scales are in another file than its weights."""
    shards: dict[str, dict[str, Any]] = {"a.safetensors": {}, "b.safetensors": {}}
    weight_map = {}
    for name, tensor in tensors.items():
        file = "b.safetensors" if "scale" in name else "a.safetensors"
        shards[file][name], weight_map[name] = tensor, file
    for file, held in shards.items():
        save_file(held, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))
    return CheckpointFiles(folder)


def test_fp8_is_multiplied_by_the_scale_of_its_block(tmp_path: Path) -> None:
    # rows and columns that are no whole blocks
    stored = RNG.normal(size=(300, 200)).astype(ml_dtypes.float8_e4m3fn)
    scales = RNG.uniform(0.1, 2, (3, 2)).astype(np.float32)
    plain = RNG.normal(size=7).astype(np.float32)
    tensors = {"model.x.weight": stored, "model.x.weight_scale_inv": scales, "norm": plain}
    # a layer after the last one, which predicts a further token
    more, numbers = {"model.layers.3.x.weight": plain}, {"num_nextn_predict_layers": 1}
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    how = {"quantization_config": quantization, "num_hidden_layers": 3, **numbers}
    files = files_of(tmp_path, tensors | more, **how)
    assert {name: info.shape for name, info in files.tensors.items()} == {
        "model.x.weight": (300, 200),
        "norm": (7,),
    }
    found = dict(files.read(files.tensors))
    wanted = np.empty((300, 200), np.float32)
    for i, j in np.ndindex(300, 200):
        wanted[i, j] = np.float32(stored[i, j]) * scales[i // 128, j // 128]
    np.testing.assert_array_equal(found["model.x.weight"], wanted)
    np.testing.assert_array_equal(found["norm"], plain)


def test_fp8_without_blocks_is_multiplied_by_the_scale_of_the_tensor(tmp_path: Path) -> None:
    """Ministral 3's, whose activations have scales too; they are not quantized here."""
    stored = RNG.normal(size=(30, 20)).astype(ml_dtypes.float8_e4m3fn)
    tensors = {
        "model.x.weight": stored,
        "model.x.weight_scale_inv": np.array(0.375, ml_dtypes.bfloat16),
        "model.x.activation_scale": np.array(3.0, ml_dtypes.bfloat16),
    }
    quantization = {"quant_method": "fp8", "weight_block_size": None}
    files = files_of(tmp_path, tensors, quantization_config=quantization)
    found = dict(files.read(files.tensors))
    assert [*found] == ["model.x.weight"]
    np.testing.assert_array_equal(found["model.x.weight"], stored.astype(np.float32) * 0.375)


def test_mxfp4_is_two_numbers_in_a_byte_and_a_power_of_two(tmp_path: Path) -> None:
    experts, rows, groups = 2, 6, 3
    blocks = RNG.integers(0, 256, (experts, rows, groups, 16)).astype(np.uint8)
    scales = RNG.integers(110, 140, (experts, rows, groups)).astype(np.uint8)
    files = files_of(
        tmp_path,
        {"e.down_proj_blocks": blocks, "e.down_proj_scales": scales},
        quantization_config={"quant_method": "mxfp4"},
    )
    assert files.tensors["e.down_proj"].shape == (experts, 32 * groups, rows)
    found = dict(files.read(files.tensors))["e.down_proj"]
    assert found.dtype == files.tensors["e.down_proj"].dtype == "bfloat16"
    for e, i, g, j in np.ndindex(experts, rows, groups, 32):
        byte = int(blocks[e, i, g, j // 2])
        bits = byte >> 4 if j % 2 else byte & 15
        number = FLOAT4[bits & 7] * (-1 if bits & 8 else 1)
        assert float(found[e, 32 * g + j, i]) == number * 2.0 ** (int(scales[e, i, g]) - 127)


def test_scales_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    stored = np.ones((300, 200), ml_dtypes.float8_e4m3fn)
    tensors = {"x.weight": stored, "x.weight_scale_inv": np.ones((2, 2), np.float32)}
    files = files_of(tmp_path, tensors)
    said = says(lambda: dict(files.read(files.tensors)))
    wanted = r"x.weight has scales of shape \[2, 2\], but blocks of 128 x 128 make \[3, 2\] of .*"
    assert re.fullmatch(re.escape(f"{tmp_path}/a.safetensors: ") + wanted, said), said
