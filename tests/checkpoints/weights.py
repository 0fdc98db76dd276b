"""Weights made from their names, so that golden files need not store them.

`scripts/golden_checkpoints.py` fills torch models with them, the tests fill checkpoints. This
module needs numpy only.
"""

import math
import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_EMBEDDINGS = ("embed_tokens", "embed_in", "lm_head", "embed_out")
_QUERIES_AND_KEYS = ("q_proj", "k_proj", "qkv_proj", "query_key_value")


def golden_weight(
    name: str, shape: Iterable[int], *, norm_mean: float = 1.0
) -> NDArray[np.float32]:
    """Return the weight of a name, the same on every machine and with every version of numpy.

    name: as in a Hugging Face checkpoint; matrices are [out, in].
    norm_mean: about which the weights of norms lie; 0 for Gemma, which multiplies by 1 + weight.

    Scales: embeddings and output matrices 2/√D, so logits have a standard deviation of about 2,
    also where the two are tied; queries and keys 1.6/√in, so attention is far from uniform; other
    matrices 1/√in; norms `norm_mean` ± 0.2; biases ± 0.25.
    """
    shape = tuple(shape)
    draws = _draws(name, math.prod(shape)).reshape(shape)
    *_, module, kind = name.split(".")
    if kind == "bias":
        made = 0.25 * draws
    elif "norm" in module:
        made = norm_mean + 0.2 * draws
    else:
        scale = 1.0
        if module in _EMBEDDINGS:
            scale = 2.0
        elif module in _QUERIES_AND_KEYS:
            scale = 1.6
        made = scale / math.sqrt(shape[-1]) * draws
    return made.astype(np.float32)


def _draws(name: str, count: int) -> NDArray[np.float64]:
    """Return nearly normal numbers of mean 0 and variance 1, from integers, hence exact.

    Each is the sum of the four 16-bit parts of one raw draw (Irwin–Hall), so |draw| < 3.47. numpy
    promises that raw streams do not change; it does not promise this of distributions.
    """
    raw = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(count)
    parts = [(raw >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    total = np.stack(parts).sum(axis=0, dtype=np.float64)
    return (total - 2 * 0xFFFF) / math.sqrt((2.0**32 - 1) / 3)
