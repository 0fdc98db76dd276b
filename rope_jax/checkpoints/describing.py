"""The config.json of a run's model, for the first family that can express it."""

import itertools
from collections.abc import Sequence
from typing import Any

from rope_jax.checkpoints.families import FAMILIES, Family
from rope_jax.config.model import ModelConfig
from rope_jax.config.training import Config
from rope_jax.rope import RotaryGeometry, Scaling
from rope_jax.rope.hf import to_hf

# Fields of `model` that say how it is computed or initialized, or that every family shares.
_WITHOUT_KEY = {"attention", "dtype", "initializer_range", "layers", "param_dtype", "position",
                "product_dtype", "remat"}  # fmt: skip


def describe(
    training: Config,
    scaling: Scaling,
    length: int,
    vocab_size: int,
    family: str | None = None,
    preferred: str | None = None,
) -> tuple[Family, dict[str, Any]]:
    """Return the config.json of a run's model with a scaling, and the family that it is of.

    length: the longest text that the model is meant for. family: a model_type; None: the first
        that can express the model, beginning with the `preferred` one.

    ValueError: no family can, or not the one that was asked for. The message says why.
    """
    model = training.model.model_copy(update={"vocab_size": vocab_size})
    if family is not None and family not in FAMILIES:
        raise ValueError(f"family: {family!r} is not one of {', '.join(FAMILIES)}")
    for key, value, is_known in (
        ("position", model.position.type, model.position.type == "rope"),
        ("attention", model.attention, model.backend.is_softmax),
        ("feed_forward", model.feed_forward.type, model.feed_forward.type == "mlp"),
    ):
        if not is_known:
            raise ValueError(f"model.{key}: {value} is in no family of transformers")
    if training.rope.layout != "half":
        raise ValueError(f"rope.layout: {training.rope.layout} is not that of any family here")
    of_model: list[str] = []
    of_positions: list[str] = []
    candidates = sorted(FAMILIES.values(), key=lambda each: each.model_type != preferred)
    for candidate in candidates if family is None else [FAMILIES[family]]:
        reasons = of_model
        try:
            keys = _model_keys(model, candidate)
            reasons = of_positions
            return candidate, keys | _position_keys(training, scaling, length, candidate)
        except ValueError as error:
            reasons.append(f"{candidate.model_type}: {error}")
    # a family that has the architecture says best what is missing
    why = "; ".join(of_positions or of_model)
    raise ValueError(f"family: none can express this model ({why})")


def _model_keys(model: ModelConfig, family: Family) -> dict[str, Any]:
    """Return the keys about everything but positions. ValueError: the family lacks something."""
    # these have a default that follows from other fields: their value, and that default
    heads, width = model.num_attention_heads, model.heads_width
    derived = {
        "num_key_value_heads": (model.kv_heads, heads),
        "head_dim": (width, model.hidden_size // heads),
        "query_pre_attn_scalar": (model.query_pre_attn_scalar or width, width),
    }
    written = {
        key.name: derived[key.name][0] if key.name in derived else key.written(model)
        for key in family.keys
    }
    by_key = {name for key in family.keys for name in key.fields}
    for name, field in ModelConfig.model_fields.items():
        if name in by_key or name in _WITHOUT_KEY:
            continue
        value, expected = getattr(model, name), family.fixed.get(name, field.default)
        value, expected = derived.get(name, (value, expected))
        if value != expected:
            raise ValueError(f"no {name} {value}")
    if "query_pre_attn_scalar" in written:
        scalar = written["query_pre_attn_scalar"]
        if scalar != int(scalar):
            raise ValueError(f"no query_pre_attn_scalar {scalar}, only whole numbers")
        written["query_pre_attn_scalar"] = int(scalar)
    return {"architectures": [family.architecture], "model_type": family.model_type} | written


def _position_keys(
    training: Config, scaling: Scaling, length: int, family: Family
) -> dict[str, Any]:
    """Return the keys about rotation and sliding windows. ValueError: the family lacks some."""
    count = training.model.num_hidden_layers
    windows = [training.sliding_windows[i % len(training.sliding_windows)] for i in range(count)]
    layers = [training.rotary_layers.for_layer(i, scaling) for i in range(count)]
    keys = family.windows.written(windows)
    head_dim, rotary_dim = training.model.heads_width, training.geometry.rotary_dim
    if rotary_dim != head_dim and not family.partial:
        raise ValueError(f"no rotary_dim {rotary_dim} in heads of {head_dim}")
    rotates = [own.type != "drope" for _, own in layers]
    if family.nope:
        keys["no_rope_layers"] = [int(own) for own in rotates]
    elif not all(rotates):
        raise ValueError("no layers without rotation")
    if not family.local:
        rotated = list(itertools.compress(layers, rotates))
        return keys | _rope_keys(rotated, family, head_dim, length)
    by_type = {}
    for name, slides in (("full_attention", False), ("sliding_attention", True)):
        chosen = [(window is not None) == slides for window in windows]
        if of_type := list(itertools.compress(layers, chosen)):
            written = _rope_keys(of_type, family, head_dim, length)
            by_type[name] = written["rope_parameters"]
            if not slides or "max_position_embeddings" not in keys:
                keys["max_position_embeddings"] = written["max_position_embeddings"]
    return keys | {"rope_parameters": by_type}


def _rope_keys(
    layers: Sequence[tuple[RotaryGeometry, Scaling]], family: Family, head_dim: int, length: int
) -> dict[str, Any]:
    """Return the keys about the rotation of layers that all rotate alike.

    In the form of transformers 5 (rope_parameters) and, where the family has one, in that of
    version 4, which would otherwise fall back to its defaults silently.
    """
    if not layers:
        raise ValueError("no model in which no layer rotates")
    geometry, scaling = layers[0]
    if any(layer != layers[0] for layer in layers):
        raise ValueError("no layers with different bases or scalings")
    longest = None if scaling.type == "dynamic_ntk" else length
    written = to_hf(geometry, scaling, head_dim=head_dim, max_position_embeddings=longest)
    rope = {"rope_type": "default", **(written["rope_scaling"] or {})}
    kind = rope["rope_type"]
    if family.rope_types is not None and kind not in family.rope_types:
        raise ValueError(f"no rope_type {kind}, only {' and '.join(family.rope_types)}")
    keys = {"max_position_embeddings": written["max_position_embeddings"]}
    own = {"rope_theta": written["rope_theta"]}
    if family.partial:
        # proportional has it among its own settings
        share = written.get("partial_rotary_factor", 1.0)
        own["partial_rotary_factor"] = rope.get("partial_rotary_factor", share)
    keys["rope_parameters"] = rope | own
    if kind in ("longrope", "yarn", "llama3") or family.model_type == "phi3":
        # at the top level it counts for every version, and Phi-3 has a default of its own there
        keys["original_max_position_embeddings"] = geometry.train_length
    if family.model_type == "gpt_neox":
        return keys | {
            "rotary_emb_base": own["rope_theta"],
            "rotary_pct": own["partial_rotary_factor"],
        }
    return keys | own | {"rope_scaling": written["rope_scaling"]}
