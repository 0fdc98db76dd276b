"""Products that take all queries of one key-value head at once, as the rows of one matrix.

Shapes: B batch, T queries, K key-value heads, G query heads per key-value head; rows: G·T.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def product(a: Float[Array, "B K X Y"], b: Float[Array, "B K Y Z"]) -> Float[Array, "B K X Z"]:
    """a·b, accumulated and returned in float32."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def stacked(x: Float[Array, "B K G T X"]) -> Float[Array, "B K rows X"]:
    """Make all queries of one key-value head the rows of one matrix."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def unstacked(x: Float[Array, "B K rows X"], groups: int) -> Float[Array, "B K G T X"]:
    """Undo `stacked`."""
    return x.reshape(*x.shape[:2], groups, -1, x.shape[-1])
