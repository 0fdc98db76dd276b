"""Granite, and HyperCLOVA X, which has its multipliers."""

from collections.abc import Mapping
from typing import Any

from rope_jax.checkpoints.families.base import (
    EXPERTS,
    FULL,
    FUSED,
    REQUIRED,
    Family,
    Form,
    Key,
    LocalWindows,
    both_norms,
    expert_keys,
    llama_keys,
)


def _power_of(exponent: int) -> Form:
    """Return the form in which our value is that of the key, a number above 0, to some power."""

    def read(value: object, _: Mapping[str, Any]) -> float | None:
        if value is not None and not (isinstance(value, int | float) and 1e-99 < value < 1e99):
            raise ValueError(f"should be a number above 0, not {value!r}")
        return None if value is None else float(value) ** exponent

    def written(value: object, _: Mapping[str, Any]) -> object:
        return float(value) ** (1 / exponent) if isinstance(value, int | float) else value

    return Form(read, written)


def _multipliers(logit_power: int = -1) -> tuple[Key, ...]:
    return (
        Key("embedding_multiplier", ("scale_embeddings",), form=_power_of(1)),
        Key("residual_multiplier", ("residual_multiplier",), form=_power_of(1)),
        Key("attention_multiplier", ("query_pre_attn_scalar",), form=_power_of(-2)),
        Key("logits_scaling", ("logit_multiplier",), form=_power_of(logit_power)),
    )


def _called_full_attention(config: dict[str, Any]) -> dict[str, Any]:
    """Granite 4: what is full_attention in later configs is attention in its own."""
    types = config.get("layer_types")
    if not isinstance(types, list):
        return config
    return config | {"layer_types": [FULL if kind == "attention" else kind for kind in types]}


GRANITE = (
    Family("granite", (*llama_keys("attention_bias", "mlp_bias"), *_multipliers())),
    Family(
        "granitemoehybrid",
        (
            *llama_keys("attention_bias", without=("intermediate_size",)),
            Key("shared_intermediate_size", ("intermediate_size",), 1024),
            *_multipliers(),
            Key("num_local_experts", (), REQUIRED, {0: ()}),
            Key("position_embedding_type", (), None, {"rope": ()}),
        ),
        fused=FUSED["granitemoehybrid"],
        windows=LocalWindows(is_local=lambda _, count: [False] * count, exist=False),
        upgrade=_called_full_attention,
    ),
    Family(
        "granitemoe",
        (*llama_keys("attention_bias"), *_multipliers(), *expert_keys("num_local_experts")),
        fused=FUSED["granitemoe"],
        fixed=EXPERTS,
    ),
    Family(
        "hyperclovax",
        (
            *llama_keys("attention_bias", "mlp_bias"),
            *_multipliers(1),
            Key("use_post_norm", ("norm_placement",), True, {True: "both"}),
        ),
        fused=both_norms("post_norm1", "post_norm2"),
    ),
)
