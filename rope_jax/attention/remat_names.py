"""Names for results of a layer, by which a remat policy keeps them for the backward pass."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive

from rope_jax.kernels.projections import PROJECTED

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


def with_remat(apply_layer: Callable[..., Any], remat: str, fsdp: int) -> Callable[..., Any]:
    """Return `apply_layer(x, params, inputs, kind)` with a policy.

    fsdp: how many devices share the parameters, which `apply_layer` gathers. Gathered ones are
        never kept, whatever the policy: the backward pass gathers them again.
    """
    if remat == "none" and fsdp == 1:
        # jitted, layers of one kind are traced and lowered once; XLA inlines the calls
        return jax.jit(apply_layer, static_argnums=(3,))
    return jax.checkpoint(apply_layer, static_argnums=(3,), policy=_POLICIES[remat])


_policies = jax.checkpoint_policies
_POLICIES: dict[str, Callable[..., Any]] = {
    "none": lambda primitive, *_, **__: primitive.name != "all_gather",
    "products": _policies.save_from_both_policies(
        _policies.save_only_these_names(PROJECTED), keep_attended
    ),
    "attention": keep_attended,
    "layer": _policies.nothing_saveable,
}
