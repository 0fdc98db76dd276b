"""`alibi`: a penalty on the logits that grows with the distance."""

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from rope_jax.positions.encodings.base import OWN_BACKENDS, Encoding

if TYPE_CHECKING:
    from rope_jax.positions.scores import Scores


class ALiBiEncoding(Encoding):
    """ALiBi: logits q·k/√H − slope_n·(i − j), with a fixed slope per head n; no parameters."""

    source: ClassVar[str] = "Press et al., arXiv 2108.12409"
    backends: ClassVar[tuple[str, ...]] = OWN_BACKENDS
    type: Literal["alibi"] = "alibi"

    @property
    def scores(self) -> "Scores":
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


def _scores(numbers: dict[str, Any], q: Any, k: Any, query_index: Any, key_index: Any) -> Any:
    """Add slope·(j − t), with t the last of the queries: a number per key instead of one per pair.

    That differs from −slope·(i − j) by slope·(t − i), a constant per query, which softmax ignores.
    """
    import jax.numpy as jnp

    from rope_jax.positions.scores import dot_product

    slopes = alibi_slopes(k.shape[1] * q.shape[2]).astype(np.float32)
    slopes = slopes.reshape(1, k.shape[1], q.shape[2], 1, 1)
    behind = (key_index - query_index[-1]).astype(jnp.float32)[None, None, None, None]
    return dot_product(numbers, q, k, query_index, key_index) + slopes * behind
