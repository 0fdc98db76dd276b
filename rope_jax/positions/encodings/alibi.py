"""`alibi`: a penalty on the logits that grows with the distance."""

import math
from typing import Any, ClassVar, Literal

import numpy as np

from rope_jax.positions.encodings.base import Encoding, Params, Scores


class ALiBiEncoding(Encoding):
    """ALiBi: logits q·k/√H − slope_n·(i − j), with a fixed slope per head n; no parameters."""

    source: ClassVar[str] = "Press et al., arXiv 2108.12409"
    uses_distances: ClassVar[bool] = True
    needs_interaction: ClassVar[bool] = True
    type: Literal["alibi"] = "alibi"

    @property
    def scores(self) -> Scores:
        return _scores


def alibi_slopes(heads: int) -> np.ndarray:
    """Return the slope of each of N heads, float64 [N].

    For N a power of two: 2^(−8n/N), n = 1 … N. Otherwise: those of the largest power of two P
    below N, then every other one of those for 2P, beginning with the first, as in the authors' code
    (ofirpress/attention_with_linear_biases, `get_slopes`).
    """
    power = 2 ** int(math.log2(heads))

    def of_power(n: int) -> np.ndarray:
        return 2.0 ** (-8.0 * np.arange(1, n + 1) / n)

    return np.concatenate([of_power(power), of_power(2 * power)[::2][: heads - power]])


def _scores(params: Params, q: Any, k: Any, query_index: Any, key_index: Any) -> Any:
    """Add −slope·(t − j), with t the last of the queries, as more columns of queries and keys.

    That differs from −slope·(i − j) by a constant per query, which softmax ignores, and on a CPU
    costs next to nothing, whereas adding a bias to every score takes half as long as all the rest.
    Parts of at most 8 bits make the products exact in bfloat16 and TF32, too.
    """
    import jax.numpy as jnp

    from rope_jax.positions.interaction import dot_product

    slopes = _in_8_bits(alibi_slopes(k.shape[1] * q.shape[2]).astype(np.float32))
    slopes = slopes.reshape(1, k.shape[1], q.shape[2], 1, -1)
    behind = query_index[-1] - key_index
    places = jnp.stack([behind & 0xFF, behind & 0xFF00, behind & ~0xFFFF], axis=-1)
    # every part of a slope meets every part of a distance
    of_queries = jnp.repeat(-jnp.asarray(slopes, q.dtype), places.shape[-1], axis=-1)
    of_keys = jnp.tile(places.astype(k.dtype)[None, None], slopes.shape[-1])
    q = jnp.concatenate([q, jnp.broadcast_to(of_queries, (*q.shape[:-1], of_keys.shape[-1]))], -1)
    k = jnp.concatenate([k, jnp.broadcast_to(of_keys, (*k.shape[:-1], of_keys.shape[-1]))], -1)
    return dot_product(params, q, k, query_index, key_index)


def _in_8_bits(x: np.ndarray) -> np.ndarray:
    """Return numbers of at most 8 significant bits that sum to x [N]: [N, parts], float32."""
    from jax.numpy import bfloat16

    parts = []
    while x.any():
        parts.append(x.astype(bfloat16).astype(np.float32))
        x = x - parts[-1]
    return np.stack(parts, axis=-1)
