"""Which results of a layer are kept for its backward pass, which computes the others again."""

from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from rope_jax.attention.kept import keep_attended
from rope_jax.config.model import RematName

_PROJECTED = "projected"


def projected(x: Array) -> Array:
    """Mark the result of a product with a weight matrix."""
    return checkpoint_name(x, _PROJECTED)


def with_remat(apply_layer: Callable[..., Any], remat: RematName, fsdp: int) -> Callable[..., Any]:
    """Return `apply_layer(x, params, inputs, kind)` with a policy.

    fsdp: how many devices share the parameters, which `apply_layer` gathers. Gathered ones are
        never kept, whatever the policy: the backward pass gathers them again.
    """
    if remat == "none" and fsdp == 1:
        # jitted, layers of one kind are traced and lowered once; XLA inlines the calls
        return jax.jit(apply_layer, static_argnums=(3,))
    return jax.checkpoint(apply_layer, static_argnums=(3,), policy=_POLICIES[remat])


def _keep_all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name != "all_gather"


_policies = jax.checkpoint_policies
_POLICIES: dict[RematName, Callable[..., Any]] = {
    "none": _keep_all_but_gathered,
    "products": _policies.save_from_both_policies(
        _policies.save_only_these_names(_PROJECTED), keep_attended
    ),
    "attention": keep_attended,
    "layer": _policies.nothing_saveable,
}
