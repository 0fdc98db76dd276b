"""Read every layer's rotary embedding from a model's Hugging Face config."""

from typing import Any, TypeVar

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.hf import model_types
from rope_jax.rope.hf.read import (
    Config,
    by_layer_type,
    head_dim,
    language_model,
    layer_types,
    parse_theirs,
    positive_int,
    read_part,
)
from rope_jax.rope.layers import LayerOverride, RotaryLayers, shortest_pattern
from rope_jax.rope.strategies import Scaling

T = TypeVar("T")


def layers_from_hf(config: Config) -> tuple[RotaryLayers, Scaling]:
    """Return the geometry and scaling of all `num_hidden_layers` layers of a model.

    The scaling is that of the first layer that rotates; the pattern overrides it where layers
    differ.

    Layers may differ by `layer_types` (in older Gemma 3 configs by `sliding_window_pattern` and
    `rope_local_base_freq`), and by `no_rope_layers` (Llama 4, SmolLM3), where 0 marks a layer
    without positions; Llama 4 scales the queries of such layers. Of the models that leave layers
    unrotated in code, without a config key, Cohere 2, EXAONE 4 and a few more are recognized.

    ValueError: as for `from_hf`, or because layers differ in train_length.
    """
    config = language_model(config)
    count = positive_int(config, "num_hidden_layers")
    parts = by_layer_type(config)
    types = layer_types(config, count) if len(parts) > 1 else [next(iter(parts))] * count
    missing = sorted({str(name) for name in types if name not in parts})
    if missing:
        raise ValueError(f"layer_types: {', '.join(missing)} has no rope_parameters")
    named = dict.fromkeys(types)
    read = {name: read_part(config, parts[name], name) for name in named if parts[name] is not None}
    layers = [  # None: without positions
        read.get(name) if rotates else None
        for name, rotates in zip(types, _rotating_layers(config, count), strict=True)
    ]
    rotating = [layer for layer in layers if layer is not None]
    if not rotating:
        raise ValueError("rope_parameters: no layer rotates")
    geometry, scaling = rotating[0]
    # Only the formulas of scaled layers contain the length, so only theirs must agree.
    lengths = {g.train_length for g, s in read.values() if s.type != "none"}
    if len(lengths) > 1:
        raise ValueError("rope_parameters: layers differ in their trained length")
    if lengths:
        geometry = RotaryGeometry(geometry.rotary_dim, geometry.base, lengths.pop())
    nope = LayerOverride(scaling=_without_positions(config))

    def override(of_layer: RotaryGeometry, other: Scaling) -> LayerOverride:
        base = None if of_layer.base == geometry.base else of_layer.base
        width = None if of_layer.rotary_dim == geometry.rotary_dim else of_layer.rotary_dim
        return LayerOverride(base, None if other == scaling else other, width)

    pattern = shortest_pattern([nope if layer is None else override(*layer) for layer in layers])
    return RotaryLayers(geometry, count, tuple(pattern), head_dim(config, types[0])), scaling


def _rotating_layers(config: Config, count: int) -> list[bool]:
    model_type = config.get("model_type")
    if model_type in model_types.GLOBAL_LAYERS_UNROTATED and config.get("sliding_window"):
        return [layer != "full_attention" for layer in layer_types(config, count)]
    if listed := config.get("no_rope_layers"):
        if len(listed) != count:
            raise ValueError(f"no_rope_layers: {len(listed)} entries for {count} layers")
        return [bool(rotates) for rotates in listed]
    every = config.get("no_rope_layer_interval")
    if every is None and model_type in model_types.EVERY_FOURTH_UNROTATED:
        every = 4
    return [not every or (layer + 1) % every != 0 for layer in range(count)]


def _without_positions(config: Config) -> Scaling:
    """The scaling of layers that do not rotate; Llama 4 scales their queries."""
    settings: dict[str, Any] = {"type": "drope"}
    is_llama4 = config.get("model_type") in model_types.UNROTATED_QUERIES_SCALED
    if is_llama4 and config.get("attn_temperature_tuning", True) and config.get("attn_scale", True):
        scale = {key: config[key] for key in ("attn_scale", "floor_scale") if key in config}
        settings["query_scale"] = {"type": "llama4"} | scale
    return parse_theirs(settings)
