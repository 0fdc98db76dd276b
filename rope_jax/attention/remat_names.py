"""Names for results of a layer, by which a remat policy keeps them for the backward pass."""

from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive

ATTENDED = "attended"
# What JAX calls the forward pass of cuDNN's attention, whose results cannot be marked from outside.
CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"

Arrays = TypeVar("Arrays")


def attended(results: Arrays) -> Arrays:
    """Mark results of attention that the backward pass reads besides queries, keys and values.

    A function with a derivative of its own must mark all that its forward rule saves: otherwise the
    rest would be computed again, and so the output too.
    """
    return jax.tree.map(lambda x: checkpoint_name(x, ATTENDED), results)


def keep_attended(primitive: Primitive, *_: object, **parameters: object) -> bool:
    """Keep attention's results: a policy of `jax.checkpoint`."""
    marked = primitive.name == "name" and parameters["name"] == ATTENDED
    return marked or primitive.name == CUDNN_FORWARD
