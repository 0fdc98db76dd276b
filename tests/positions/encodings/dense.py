"""Causal attention with a position encoding: as a layer computes it, and its logits.

Shapes: B batch, S tokens, N heads, K key-value heads, G = N/K, H head dim.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.blockwise import Blockwise
from rope_jax.blocks.attention import attend as layer_attend
from rope_jax.blocks.base import DecoderSpec
from rope_jax.blocks.mixer import AttentionSpan, LayerInputs
from rope_jax.positions import bands
from rope_jax.positions.encodings import ENCODINGS, Sizes
from rope_jax.positions.interaction import Block, Indices
from rope_jax.rope import Frequencies, RotaryGeometry, cos_sin

# Every encoding, with settings at which a short window reaches beyond all of its borders.
SETTINGS = {
    "rope": {},
    "none": {},
    "sinusoidal": {},
    "learned": {"length": 512},
    "shaw": {"max_distance": 5},
    "alibi": {},
    "t5": {"buckets": 8, "max_distance": 12},
    "kerple": {},
    "fire": {"threshold": 12},
    "xpos": {"scale_base": 64.0},
    "pope": {"initial_delta": "uniform"},
}
S = 24
SIZES = Sizes(layers=1, hidden_size=24, heads=4, head_dim=8, std=0.5)
KV_HEADS = 2
POSITIONS = np.arange(S, dtype=np.int32)[None]


def made(name, sizes=SIZES, seed=0, **settings):
    """Return an encoding and its parameters, of one layer."""
    encoding = ENCODINGS[name](**(SETTINGS[name] | settings))
    return encoding, encoding.initial(sizes, jax.random.key(seed))


def normal(seed, *shape):
    """Return float32 numbers from a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_qkv(length, sizes=SIZES):
    """Return q [2, S, N, H], k and v [2, S, K, H]."""
    heads = sizes.heads, KV_HEADS, KV_HEADS
    return [normal(n, 2, length, count, sizes.head_dim) for n, count in enumerate(heads, 1)]


class Rotation(NamedTuple):
    """How queries and keys turn."""

    base: float = 100.0
    layout: str = "half"
    dim: int | None = None

    def cos_sin(self, encoding, head_dim, positions):
        """Return cos and sin [#B, S, 1, pairs] of the positions, the same for all heads."""
        theta = RotaryGeometry(self.dim or encoding.rotary_dim(head_dim), self.base).inv_freq()
        return [x[..., None, :] for x in cos_sin(Frequencies.from_float64(theta), positions)]


def layer_logits(encoding, parameters, q, k, positions, rotation=Rotation()):  # noqa: B008
    """Return logits [B, K, G, S, S] before the causal mask."""
    cos, sin = rotation.cos_sin(encoding, q.shape[-1], positions)
    params = encoding.layer_params(parameters, positions, cos.shape[-1], q.shape[2])
    params = {name: x[0] for name, x in params.items()}
    q, k, groups = jnp.asarray(q), jnp.asarray(k), k.shape[2]
    q = encoding.rotate_queries(params, q, cos, sin, rotation.layout)
    k = encoding.rotate_keys(params, k, cos, sin, rotation.layout).transpose(0, 2, 1, 3)
    q = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    q = q.reshape(*q.shape[:2], groups, -1, q.shape[-1]).transpose(0, 2, 3, 1, 4)
    index = jnp.arange(q.shape[-2])
    return encoding.scores(params, Block(q, k, Indices(index, index)))


def attend(encoding, parameters, q, k, v, backend):
    """Return a layer's attention [B, S, N, H] at POSITIONS; blockwise in 4 blocks."""
    cos, sin = Rotation().cos_sin(encoding, q.shape[-1], POSITIONS)
    params = encoding.layer_params(parameters, POSITIONS, cos.shape[-1], q.shape[2])
    params = {name: jnp.asarray(x[0]) for name, x in params.items()}
    rotation = bands.Rotation(cos, sin, cos, sin)
    inputs = LayerInputs((rotation,), jnp.ones((1, S), jnp.float32), params, None, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKENDS, "blockwise", Blockwise(block=7))
        spec = DecoderSpec(attention=backend, encoding=encoding)
        return layer_attend(spec, AttentionSpan(), inputs, q, k, v)[0]


def slow_logits(q, k):
    """Return q·k/√H in float64: [B, N, S, S]."""
    q, k = np.float64(q), np.float64(k)
    k = np.repeat(k, q.shape[2] // k.shape[2], axis=2)
    return np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])


def causal(logits):
    """Return only the logits that a causal mask leaves, less that of the query's own key.

    Scores need only be right up to a constant per query. logits: [B, N, S, S]; as one vector.
    """
    logits = np.asarray(logits)
    own = np.diagonal(logits, axis1=-2, axis2=-1)[..., None]
    return (logits - own)[..., np.tril(np.ones(logits.shape[-2:], bool))]
