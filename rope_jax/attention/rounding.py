"""Attention of float32 arrays whose products have factors rounded to bfloat16."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Any attention function: its first arguments are queries, keys and values.
AnyAttention = Callable[..., Any]


def in_bfloat16(attention: AnyAttention) -> AnyAttention:
    """Return the same attention, with queries, keys and values rounded to bfloat16.

    In bfloat16, the sums of products and the softmax are float32. The result has the dtype of the
    values that are given.
    """

    def rounded(queries: Any, keys: Any, v: jax.Array, *rest: Any) -> jax.Array:
        arrays = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (queries, keys, v))
        return attention(*arrays, *rest).astype(v.dtype)

    return rounded
