"""Attention with a position map: as a layer computes it, and written out in float64.

Shapes: N heads, consecutive ones of which share a key-value head; T queries, the last of S tokens;
pairs: d/2.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.blockwise import Blockwise
from rope_jax.blocks.attention import attend
from rope_jax.blocks.base import DecoderSpec
from rope_jax.blocks.mixer import AttentionSpan, LayerInputs
from rope_jax.positions.bands import band_masks, rotations
from rope_jax.rope import RotaryGeometry

# 8 of 12 dimensions rotate; 61 is no multiple of the blocks' 16 tokens
LENGTH, QUERIES, WINDOW, GEOMETRY, WIDTH = 61, 47, 24, RotaryGeometry(8, 100.0, 24), 12
HEADS, KV_HEADS, PAIRS = 4, 2, 4
# three documents in a window, of which positions restart in each
STARTS = np.array([0, 17, 21])
SEGMENTS = np.searchsorted(STARTS, np.arange(LENGTH), side="right")[None].astype(np.int32)
POSITIONS = (np.arange(LENGTH) - STARTS[SEGMENTS[0] - 1])[None].astype(np.int32)
RANDOM = np.random.default_rng(3)
Q, K, V = (
    RANDOM.standard_normal((1, *shape, WIDTH)).astype(np.float32)
    for shape in ((QUERIES, HEADS), (LENGTH, KV_HEADS), (LENGTH, KV_HEADS))
)


@functools.partial(jax.jit, static_argnames=("backend", "layer"))
def layer_attention(rotary, backend, layer=0):
    """Return attention as a layer computes it, from the model's argument: [1, T, N, H]."""
    of_layer = lambda leaf: jnp.asarray(leaf[min(layer, len(leaf) - 1)])  # noqa: E731
    positions, segments, q, k, v = map(jnp.asarray, (POSITIONS, SEGMENTS, Q, K, V))
    every = jax.tree.map(of_layer, rotations(rotary, positions))
    bias = None if rotary.bias is None else of_layer(rotary.bias)
    scale, masks = of_layer(rotary.query_scale), band_masks(rotary)
    inputs = LayerInputs(every, scale, {}, segments, bias, masks)
    with pytest.MonkeyPatch.context() as patch:
        # whose borders coincide with none of a band
        patch.setitem(BACKENDS, "blockwise", Blockwise(block=16))
        return attend(DecoderSpec(attention=backend), AttentionSpan(), inputs, q, k, v)[0]


def dense_attention(angles, weight, scale, bias=0.0):
    """softmax((weight·q_i·R(angle_ij)·k_j + q'_i·k'_j)·scale_i/√H + bias_ij)·v in float64.

    q' and k' are the dimensions that do not rotate. angles: in radians, NaN where a key is hidden
    within its document; they and weight: [#N, T, S, #pairs]. scale: [#N, T]; bias: [#N, #T, #S].
    """
    q, k, v = (np.float64(x[0]) for x in (Q, K, V))
    k, v = (np.repeat(x, HEADS // KV_HEADS, axis=1) for x in (k, v))
    a, b, rest = np.split(q, [PAIRS, 2 * PAIRS], axis=-1)
    c, d, key_rest = np.split(k, [PAIRS, 2 * PAIRS], axis=-1)
    # (x_a, x_b) as the complex number x_a + i·x_b, so that a rotation is a product
    products = np.einsum("thp,shp->htsp", a + 1j * b, c - 1j * d)
    turned = (products * np.exp(1j * np.nan_to_num(angles))).real * weight
    logits = turned.sum(-1) + np.einsum("thc,shc->hts", rest, key_rest)
    logits = logits * scale[..., None] / np.sqrt(WIDTH) + bias
    seen = (SEGMENTS[0][:, None] == SEGMENTS[0]) & np.tri(LENGTH, dtype=bool)
    seen = seen[-QUERIES:] & ~np.isnan(angles[..., 0])
    weights = np.where(seen, np.exp(logits - logits.max(-1, keepdims=True)), 0)
    return np.einsum("hts,shv->thv", weights / weights.sum(-1, keepdims=True), v)[None]
