"""The mark of attention's results, by which a remat policy keeps them for the backward pass."""

from typing import Any, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

ATTENDED = "attended"
# What JAX calls the forward pass of cuDNN's attention, whose results cannot be marked from outside.
CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"

Arrays = TypeVar("Arrays")


def attended(results: Arrays) -> Arrays:
    """Mark results of attention that the backward pass reads besides queries, keys and values.

    A function with a derivative of its own must mark what its forward rule saves: with a mark on
    its output alone, the rest of what is saved would be computed again, and so the output too.
    """
    return jax.tree.map(lambda x: checkpoint_name(x, ATTENDED), results)


def keep_attended(primitive: Any, *_: Any, **parameters: Any) -> bool:
    """Keep attention's results: a policy of `jax.checkpoint`."""
    marked = primitive.name == "name" and parameters["name"] == ATTENDED
    return marked or primitive.name == CUDNN_FORWARD
