"""Weights of 8 and 4 bits with a scale for each block, which become numbers as they are read.

    fp8 (DeepSeek V3):  W[i, j] = w[i, j]·s[⌊i/m⌋, ⌊j/n⌋], w of float8_e4m3, blocks of m × n
    fp8 (Ministral 3):  the same with one block, the whole tensor (weight_block_size is null)
    MXFP4 (gpt-oss):    W[e, 32·g + j, i] = w[e, i, g, j]·2^(s[e, i, g] − 127), w of float4_e2m1

Sources: DeepSeek-V3, arXiv 2412.19437, §3.3; OCP Microscaling Formats 1.0. Two numbers of 4 bits
are in each byte, the first in the lower half, and their product is exact in bfloat16.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

_METHODS = ("fp8", "mxfp4")
_BLOCK = (128, 128)
_FLOAT4 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
# the two numbers in every byte
_PAIRS = np.stack([np.tile(_FLOAT4, 16), np.repeat(_FLOAT4, 16)], axis=-1)


def check_method(quantization: object) -> None:
    """ValueError if weights are quantized in a way that cannot be read.

    quantization: a config's quantization_config. transformers keeps it after it has dequantized a
        GGUF file, whose tensors are floats then.
    """
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    if quantization and method not in (*_METHODS, "gguf"):
        raise ValueError(
            f"quantization_config: quant_method {method!r} is not one of {', '.join(_METHODS)}, "
            "which can be read; use the unquantized checkpoint"
        )


def partner(name: str, dtype: str) -> tuple[str, str] | None:
    """Return the name of a quantized tensor once it is read, and that of its scales; None: neither.

    dtype: its type in the file.
    """
    if dtype == "F8_E4M3":
        return name, f"{name}_scale_inv"
    if dtype == "U8" and (weight := name.removesuffix("_blocks")) != name:
        return weight, f"{weight}_scales"
    return None


def logical_shape(shape: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """Return the shape of a tensor once it is read: experts' outputs come last."""
    if dtype == "F8_E4M3" or len(shape) != 4:
        return shape
    experts, rows, groups, size = shape
    return experts, 2 * groups * size, rows


def read_float8(path: Path, name: str) -> NDArray[Any]:
    """Return a tensor of float8_e4m3, for which safetensors knows no type of numpy."""
    with path.open("rb") as file:
        start = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(start))[name]
        first, last = entry["data_offsets"]
        file.seek(8 + start + first)
        stored = np.frombuffer(file.read(last - first), ml_dtypes.float8_e4m3fn)
    return stored.reshape(entry["shape"])


def dequantized(
    stored: NDArray[Any], scales: NDArray[Any], method: Mapping[str, Any]
) -> NDArray[Any]:
    """Return the numbers of a tensor: float32 from fp8, bfloat16 from MXFP4.

    method: the config's quantization_config. ValueError: the scales do not fit.
    """
    if stored.dtype == np.uint8:
        if scales.shape != stored.shape[:3]:
            raise ValueError(
                f"scales of shape {list(scales.shape)} for blocks {list(stored.shape)}"
            )
        experts, rows, *_ = stored.shape
        out = np.empty(logical_shape(stored.shape, "U8"), ml_dtypes.bfloat16)
        for expert in range(experts):  # all of a layer's in float32 would take gigabytes
            exponents = scales[expert].astype(np.int32) - 127
            numbers = np.ldexp(_PAIRS[stored[expert]], exponents[..., None, None])
            out[expert] = numbers.reshape(rows, -1).T
        return out
    block = tuple(method.get("weight_block_size", _BLOCK) or stored.shape)
    if scales.size == 1:
        scales = scales.reshape(1, 1)
    wanted = tuple(-(-size // b) for size, b in zip(stored.shape, block, strict=True))
    if scales.shape != wanted:
        raise ValueError(
            f"scales of shape {list(scales.shape)}, but blocks of {block[0]} x {block[1]} make "
            f"{list(wanted)} of {list(stored.shape)}"
        )
    rows, columns = stored.shape
    numbers = stored.astype(np.float32)
    by_column = np.repeat(scales.astype(np.float32), block[1], axis=1)[:, :columns]
    for first in range(0, rows, block[0]):
        numbers[first : first + block[0]] *= by_column[first // block[0]]
    return numbers
