"""The config.json of a run's model: the inverse of reading.py."""

from collections.abc import Sequence, Set
from typing import Any

from rope_jax.blocks.base import BlockConfig
from rope_jax.checkpoints.families import FAMILIES, Family
from rope_jax.config.model import ModelConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, Scaling
from rope_jax.rope.hf import model_types, to_hf
from rope_jax.rope.hf.read import LENGTH
from rope_jax.rope.query_scales import Llama4Scale, QueryScale

# Fields of `model` that say how it is computed or initialized, or that every family shares.
_WITHOUT_KEY = {"attention", "dtype", "feed_forward.balance", "initializer_range", "layers",
                "param_dtype", "position", "product_dtype", "remat"}  # fmt: skip


def describe(
    training: TrainingConfig,
    scaling: Scaling,
    length: int,
    vocab_size: int,
    model_type: str | None = None,
) -> tuple[Family, dict[str, Any]]:
    """Return the config.json of a run's model with a scaling, and the family that it is of.

    length: the longest text that the model is meant for. model_type: of the family; None: the first
        that can express the model.

    UserError: no family can, or not the one that was asked for. The message says what those lack
    that come closest.
    """
    model = training.model.model_copy(update={"vocab_size": vocab_size})
    if model_type is not None and model_type not in FAMILIES:
        raise UserError(f"family: {model_type!r} is not one of {', '.join(FAMILIES)}")
    check_kind(model)
    lacks_model: dict[str, str] = {}  # the first family that lacks something, by what that is
    lacks_positions: dict[str, str] = {}
    for family in FAMILIES.values() if model_type is None else [FAMILIES[model_type]]:
        reasons = lacks_model
        try:
            keys = model_keys(model, family)
            reasons = lacks_positions
            return family, keys | position_keys(training, scaling, length, family)
        except ValueError as error:
            reasons.setdefault(str(error), family.model_type)
    if model_type is not None:
        (why,) = lacks_positions or lacks_model
        raise UserError(f"family: {model_type} cannot express this model ({why}); name another")
    # a family that has the architecture says best what is missing
    closest = sorted(
        (lacks_positions or lacks_model).items(), key=lambda each: each[0].count(", no ")
    )
    why = "; ".join(f"{name}: {reason}" for reason, name in closest[:3])
    raise UserError(f"family: none can express this model ({why})")


def check_kind(model: ModelConfig) -> None:
    """UserError: the model has no rotation, or another attention than every family."""
    if model.position.type != "rope":
        raise UserError(f"model.position: {model.position.type} is in no family of transformers")
    if not model.backend.is_softmax:
        raise UserError(f"model.attention: {model.attention} is in no family of transformers")


def model_keys(model: ModelConfig, family: Family) -> dict[str, Any]:
    """Return the keys about everything but positions. ValueError: the family lacks something."""
    fields_of = {name: getattr(model, name) for name in ModelConfig.model_fields}
    blocks = {name: x for name, x in fields_of.items() if isinstance(x, BlockConfig)}
    expected: dict[str, Any] = {
        f"{slot}.{name}": field.default
        for slot, block in blocks.items()
        for name, field in type(block).model_fields.items()
    }
    expected |= _flat({name: field.default for name, field in ModelConfig.model_fields.items()})
    expected |= {
        "feed_forward.moe_intermediate_size": model.intermediate_size,
        "num_key_value_heads": model.num_attention_heads,
        "head_dim": model.hidden_size // model.num_attention_heads,
        "query_pre_attn_scalar": model.heads_width,
        "alternate_mixer.type": None,
        **family.fixed,
    }
    given = _flat(fields_of)
    fields = {name: expected[name] if value is None else value for name, value in given.items()}
    settable = _WITHOUT_KEY.union(*(key.fields for key in family.keys))
    lacking = [
        f"no {name} {value}"
        for name, value in fields.items()
        if name not in settable and value != expected[name]
    ]
    written: dict[str, Any] = {}
    for key in family.keys:
        if not fields.keys() >= {*key.fields}:
            continue  # of another block, whose type the family lacks
        try:
            written[key.name] = key.written(fields)
        except ValueError as error:
            lacking.append(str(error))
    if lacking:
        raise ValueError(", ".join(lacking))
    if (scalar := written.get("query_pre_attn_scalar")) is not None:
        if scalar != int(scalar):
            raise ValueError(f"no query_pre_attn_scalar {scalar}, only whole numbers")
        written["query_pre_attn_scalar"] = int(scalar)
    return {"architectures": [family.architecture], "model_type": family.model_type} | written


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a model, with those of a block in its place, as in `feed_forward.type`."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, BlockConfig):
            flat |= {f"{name}.{x}": getattr(value, x) for x in type(value).model_fields}
        else:
            flat[name] = value
    return flat


def position_keys(
    training: TrainingConfig, scaling: Scaling, length: int, family: Family
) -> dict[str, Any]:
    """Return the keys about rotation and sliding windows. ValueError: the family lacks some."""
    count = training.model.num_hidden_layers
    settings = [training.pattern[i % len(training.pattern)] for i in range(count)]
    for name in {"sliding_window", "attention_chunk"} - {family.windows.setting}:
        if any(getattr(layer, name) for layer in settings):
            raise ValueError(f"no {name}")
    windows = [getattr(layer, family.windows.setting) for layer in settings]
    layers = [training.rotary_layers.for_layer(i, scaling) for i in range(count)]
    keys = family.windows.written(windows)
    if training.rope.layout != family.layout:
        raise ValueError(f"no rope.layout {training.rope.layout}, only {family.layout}")
    head_dim = training.model.self_attention.rotary_dim(training.model.spec())
    rotary_dim = training.geometry.rotary_dim
    if rotary_dim != head_dim and family.model_type not in model_types.MAY_ROTATE_PART:
        raise ValueError(f"no rotary_dim {rotary_dim} in heads of {head_dim}")
    rotates = [applied.type != "drope" for _, applied in layers]
    query_scales = {applied.query_scale for _, applied in layers if applied.type == "drope"}
    if family.model_type in model_types.UNROTATED_QUERIES_SCALED:
        keys |= _temperature(query_scales)
    elif query_scales - {None}:
        raise ValueError("no query_scale in layers without rotation")
    if family.model_type in model_types.EVERY_FOURTH_UNROTATED:
        keys["no_rope_layers"] = [int(rotated) for rotated in rotates]
    elif family.model_type in model_types.GLOBAL_LAYERS_UNROTATED:
        if rotates != [window is not None or not any(windows) for window in windows]:
            raise ValueError("other layers without rotation than those without a sliding window")
    elif not all(rotates):
        raise ValueError("no layers without rotation")
    if not family.local:
        rotated = [layer for layer in layers if layer[1].type != "drope"]
        return keys | _rope_keys(rotated, family, head_dim, length)
    parts = {}
    for name, slides in (("full_attention", False), ("sliding_attention", True)):
        of_type = [x for x, w in zip(layers, windows, strict=True) if (w is not None) == slides]
        if of_type:
            parts[name] = _rope_keys(of_type, family, head_dim, length)
    # version 4 reads the other keys, and scales no layer that slides
    *_, sliding = parts.values()
    keys |= parts.get("full_attention", sliding | {"rope_scaling": None})
    if len({geometry.rotary_dim for geometry, _ in layers}) > 1:  # which it cannot express
        del keys["rope_scaling"]
    if "rope_local_base_freq" in family.defaults:
        keys["rope_local_base_freq"] = sliding["rope_theta"]
    return keys | {"rope_parameters": {name: x["rope_parameters"] for name, x in parts.items()}}


def _temperature(scales: Set[QueryScale | None]) -> dict[str, Any]:
    """Return the keys about query scales, those of all layers without rotation."""
    if scales <= {None}:
        return {"attn_temperature_tuning": False}
    scale, *others = scales
    if others or not isinstance(scale, Llama4Scale):
        raise ValueError("no query_scale in layers without rotation but one llama4 for all")
    return {"attn_temperature_tuning": True, **scale.model_dump(exclude={"type"})}


def _rope_keys(
    layers: Sequence[tuple[RotaryGeometry, Scaling]], family: Family, head_dim: int, length: int
) -> dict[str, Any]:
    """Return the keys about the rotation of layers that all rotate alike.

    In the form of transformers 5 (rope_parameters) and in that of version 4, which would otherwise
    fall back to its defaults silently.
    """
    if not layers:
        raise ValueError("no model in which no layer rotates")
    geometry, scaling = layers[0]
    if any(layer != layers[0] for layer in layers):
        raise ValueError("no layers with different bases or scalings")
    longest = None if scaling.type == "dynamic_ntk" else length
    written = to_hf(
        geometry,
        scaling,
        head_dim=head_dim,
        max_position_embeddings=longest,
        model_type=family.model_type,
    )
    rope = {"rope_type": "default", **(written["rope_scaling"] or {})}
    rope_type = rope["rope_type"]
    if family.rope_types is not None and rope_type not in family.rope_types:
        raise ValueError(f"no rope_type {rope_type}, only {' and '.join(family.rope_types)}")
    keys = {"max_position_embeddings": written["max_position_embeddings"]}
    in_either = {"rope_theta": written["rope_theta"]}  # form
    if family.model_type in model_types.MAY_ROTATE_PART:
        # proportional has it among its own settings
        share = written.get("partial_rotary_factor", 1.0)
        in_either["partial_rotary_factor"] = rope.get("partial_rotary_factor", share)
    if family.local and rope.get("truncate") is False:  # read outside of the layer type, if at all
        raise ValueError("no YaRN without truncate")
    if "llama_4_scaling_beta" in rope and family.model_type not in model_types.QUERIES_SCALED:
        raise ValueError("no Ministral's query scale")
    keys["rope_parameters"] = rope | in_either
    if rope_type in ("longrope", "yarn", "llama3") or LENGTH in family.defaults:
        # at the top level it counts for every version, and Phi-3 has a default of its own there
        keys[LENGTH] = geometry.train_length
    keys |= {family.aliases.get(name, name): value for name, value in in_either.items()}
    return keys | {"rope_scaling": written["rope_scaling"]}
