"""Write a geometry and a strategy as equivalent Hugging Face config keys."""

import math
from typing import Any

import numpy as np

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.hf.model_types import SOFTMAX_SCALED
from rope_jax.rope.hf.read import LENGTH, positive_int, softmax_scale
from rope_jax.rope.query_scales import ConstantScale, MinistralScale
from rope_jax.rope.strategies import STRATEGIES, Scaling
from rope_jax.rope.strategies.by_parts import ByParts, YaRNScaling
from rope_jax.rope.strategies.explicit import LongRoPEScaling

_OWN_FORMS: dict[str, str | None] = {
    "none": "`default`",
    "pi": "`linear`",
    "ntk": "`default`, another `rope_theta`",
    "dynamic_ntk": "`dynamic`",
    "ntk_by_parts": "`yarn`, `attention_factor` 1; ramp rotations: `longrope`, by its numbers",
    "yarn": "`yarn`; ramp rotations: `longrope`, by its numbers",
    "longrope": "`longrope`",
    "llama3": "`llama3`",
    "abf": "`default`, another `rope_theta`",
    "mixed_base": "`longrope`, by its numbers",
    "evq_cosh": "`longrope`, by its numbers",
    "p_rope": "`proportional`",
    # these always have pairs that do not rotate, which no form can express
    "cope": None,
    "drope": None,
}
# Other fixed frequencies can be written as LongRoPE factors; length-dependent ones cannot.
_BY_NUMBERS = "`longrope`, by its numbers (no frequency 0)"
HF_FORMS = {
    name: _OWN_FORMS.get(name, None if strategy.follows_length == "yes" else _BY_NUMBERS)
    for name, strategy in STRATEGIES.items()
}
"""The form in which `to_hf` writes each strategy; None: transformers has no form for it."""


def to_hf(
    geometry: RotaryGeometry,
    scaling: Scaling,
    *,
    head_dim: int | None = None,
    max_position_embeddings: int | None = None,
    model_type: str | None = None,
) -> dict[str, Any]:
    """Return the config keys from which transformers computes the same frequencies and m.

    `rope_theta` and `rope_scaling` are side by side, which transformers 4.x and 5.x both read.

    head_dim: the head's width, if above rotary_dim; then a `partial_rotary_factor` is written,
    which model types without partial rotary (Llama) ignore for `default`.
    max_position_embeddings: the length at which the model will be used; by default
    factor · train_length, or train_length for `dynamic`, whose formula contains it.
    model_type: the code of DeepSeek V2 and V3 makes a constant query scale of `mscale_all_dim`, and
        that of Ministral 3 needs a `llama_4_scaling_beta`.

    ValueError: transformers has no form for the strategy (see `HF_FORMS`), or the lengths or
    widths do not fit.
    """
    head_dim = geometry.rotary_dim if head_dim is None else head_dim
    if head_dim < geometry.rotary_dim:
        raise ValueError(f"head_dim: {head_dim} is below rotary_dim {geometry.rotary_dim}")
    base, rope = _written(geometry, scaling)
    scale, of_code = scaling.query_scale, 1.0
    if isinstance(scaling, YaRNScaling) and model_type in SOFTMAX_SCALED:
        of_code = softmax_scale(rope)
        if scale is None and of_code != 1:  # m itself, which leaves the softmax alone
            rope = {key: value for key, value in rope.items() if "mscale" not in key}
            rope["attention_factor"] = scaling.m
    if isinstance(scale, MinistralScale) and rope.get("rope_type") == "yarn":
        rope["llama_4_scaling_beta"] = scale.beta
    elif scale is None and model_type == "ministral3" and rope.get("rope_type") == "yarn":
        rope["llama_4_scaling_beta"] = 0.0  # its code needs the key
    elif isinstance(scale, ConstantScale) and of_code != 1:
        if not math.isclose(scale.s, of_code, rel_tol=1e-5):
            raise ValueError(
                f"query_scale.s: is {scale.s}, but DeepSeek's code computes {of_code:.7g} for this "
                "YaRN; give that"
            )
    elif scale is not None:
        raise ValueError(
            f"query_scale: {scale.type} has no form in Hugging Face's rope parameters with "
            f"{scaling.type}"
        )
    longest = max_position_embeddings
    if longest is None:
        longest = math.ceil((scaling.extension_factor or 1.0) * geometry.train_length)
    longest = positive_int({"max_position_embeddings": longest}, "max_position_embeddings")
    if scaling.type == "dynamic_ntk" and longest != geometry.train_length:
        raise ValueError(
            f"max_position_embeddings: is {longest}, but dynamic scaling grows from it, so it must "
            f"be train_length {geometry.train_length}"
        )
    written: dict[str, Any] = {
        "rope_theta": base,
        "rope_scaling": rope or None,
        "max_position_embeddings": longest,
        "head_dim": head_dim,
    }
    if head_dim != geometry.rotary_dim:
        if scaling.type == "p_rope":
            raise ValueError(
                f"head_dim: p_rope works on whole heads, but {head_dim} is not rotary_dim "
                f"{geometry.rotary_dim}"
            )
        share = geometry.rotary_dim / head_dim
        if int(head_dim * share) != geometry.rotary_dim:
            share = math.nextafter(share, 2.0)  # transformers truncates the product
        written["partial_rotary_factor"] = share
    if rope.get("rope_type") == "longrope" or (
        LENGTH not in rope and longest != geometry.train_length
    ):  # 4.x reads LongRoPE's original length only here
        written[LENGTH] = geometry.train_length
    return written


def _written(geometry: RotaryGeometry, scaling: Scaling) -> tuple[float, dict[str, Any]]:
    """(rope_theta, rope_scaling); the latter is empty if the base says it all."""
    settings = scaling.model_dump(exclude={"type", "query_scale"}, exclude_none=True)
    name, length = scaling.type, {LENGTH: geometry.train_length}
    if HF_FORMS.get(name) is None:
        raise ValueError(f"type: {name} has no form in Hugging Face's config")
    if name == "none":
        return geometry.base, {}
    if name == "abf":
        return settings["base"], {}
    if name == "ntk":
        d = geometry.rotary_dim
        scaling.frequencies(geometry)  # ValueError where its formula is undefined
        return geometry.base * settings["factor"] ** (d / (d - 2)), {}
    if name in ("pi", "dynamic_ntk"):
        return geometry.base, {"rope_type": "linear" if name == "pi" else "dynamic", **settings}
    if name == "p_rope":
        share = {"partial_rotary_factor": settings["p"], "factor": settings["factor"]}
        return geometry.base, {"rope_type": "proportional", **share}
    if name == "llama3":
        return geometry.base, {"rope_type": "llama3", **settings, **length}
    if isinstance(scaling, LongRoPEScaling):
        lists = {name: list(settings.pop(name)) for name in ("short_factor", "long_factor")}
        # write m itself: 4.x and 5.x derive it differently from two lengths and a factor
        settings |= {"factor": scaling.factor or 1.0, "attention_factor": scaling.m(geometry)}
        return geometry.base, {"rope_type": "longrope", **settings, **lists, **length}
    if isinstance(scaling, ByParts) and settings.pop("ramp") == "index":
        if name == "ntk_by_parts":
            settings["attention_factor"] = 1.0
        return geometry.base, {"rope_type": "yarn", **settings, **length}
    return geometry.base, _by_numbers(geometry, scaling) | length


def _by_numbers(geometry: RotaryGeometry, scaling: Scaling) -> dict[str, Any]:
    """Write fixed frequencies as LongRoPE's factors, the same for short and long texts."""
    if scaling.length_dependent:
        raise ValueError(
            f"type: {scaling.type} over a length-dependent scaling has no form in Hugging Face's "
            "config"
        )
    inv_freq, m = scaling.scaled(geometry)
    if not np.all(inv_freq > 0):
        raise ValueError(
            f"type: {scaling.type} has pairs that do not rotate, which no config can say"
        )
    factors = (geometry.inv_freq() / inv_freq).tolist()
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": list(factors),
        "factor": 1.0,
        "attention_factor": float(m),
    }
