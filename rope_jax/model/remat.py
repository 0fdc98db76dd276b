"""Which results of a layer the backward pass keeps, and which it computes again."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

from rope_jax.attention.base import keep_attended
from rope_jax.kernels.projections import PROJECTED
from rope_jax.model.spec import RematName

P = ParamSpec("P")
Result = TypeVar("Result")

_policies = jax.checkpoint_policies
_POLICIES: dict[str, Callable[..., bool]] = {
    "none": lambda primitive, *_, **__: primitive.name != "all_gather",
    "products": _policies.save_from_both_policies(
        _policies.save_only_these_names(PROJECTED), keep_attended
    ),
    "attention": keep_attended,
    "layer": _policies.nothing_saveable,
}


def with_remat(
    apply_layer: Callable[P, Result], remat: RematName, fsdp: int
) -> Callable[P, Result]:
    """Return `apply_layer(x, params, inputs, kind)` with a policy.

    fsdp: how many devices share the parameters, which `apply_layer` gathers. Gathered ones are
        never kept, whatever the policy: the backward pass gathers them again.
    """
    if remat == "none" and fsdp == 1:
        # jitted, layers of one kind are traced and lowered once; XLA inlines the calls
        return jax.jit(apply_layer, static_argnums=(3,))
    return jax.checkpoint(apply_layer, static_argnums=(3,), policy=_POLICIES[remat])
