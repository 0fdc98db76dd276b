"""Rotary position embeddings with pluggable context-extension strategies.

Usable on its own: nothing here imports the rest of `rope_jax`.

    geometry = RotaryGeometry(rotary_dim=64, base=10000.0, train_length=4096)
    scaling = parse_scaling({"type": "yarn", "factor": 8.0})
    cos, sin = cos_sin(scaling.frequencies(geometry), positions)   # f32 [..., T, 32]
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)                # [..., T, heads, head_dim]

or, as a Flax module:

    rope = RotaryEmbedding(geometry, scaling)
    q, k = rope(q, k, positions)

For Hugging Face's config dictionaries see `rope_jax.rope.hf`; for models whose layers differ, see
`RotaryLayers`.
"""

from rope_jax.rope.angles import cos_sin
from rope_jax.rope.geometry import Frequencies, Layout, Rotary, RotaryGeometry
from rope_jax.rope.layers import LayerOverride, RotaryLayers
from rope_jax.rope.module import RotaryEmbedding, RotaryNumbers
from rope_jax.rope.query_scales import QUERY_SCALES, QueryScale
from rope_jax.rope.rotation import rotate, rotate_heads
from rope_jax.rope.strategies import STRATEGIES, AnyScaling, Scaling, parse_scaling
from rope_jax.rope.strategies.base import WithFactor

__all__ = [
    "QUERY_SCALES",
    "STRATEGIES",
    "AnyScaling",
    "Frequencies",
    "LayerOverride",
    "Layout",
    "QueryScale",
    "Rotary",
    "RotaryEmbedding",
    "RotaryGeometry",
    "RotaryLayers",
    "RotaryNumbers",
    "Scaling",
    "WithFactor",
    "cos_sin",
    "parse_scaling",
    "rotate",
    "rotate_heads",
]
