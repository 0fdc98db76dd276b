"""Causal attention with a position encoding, written out: for the whole window, or in blocks.

Shapes: B batch, T queries, S keys, N heads, K key-value heads, G = N/K, H head dim.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.positions.encodings import ENCODINGS, Sizes
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
SIZES = Sizes(layers=1, hidden_size=24, heads=4, head_dim=8, std=0.5)
KV_HEADS = 2


def made(name, sizes=SIZES, seed=0, **settings):
    """Return an encoding and its parameters, of one layer."""
    encoding = ENCODINGS[name](**(SETTINGS[name] | settings))
    return encoding, encoding.initial(sizes, jax.random.key(seed))


def normal(seed, *shape):
    """Return float32 numbers from a normal distribution."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


class Rotation(NamedTuple):
    """How queries and keys turn."""

    base: float = 100.0
    layout: str = "half"
    dim: int | None = None

    def cos_sin(self, encoding, head_dim, positions):
        """Return cos and sin [#B, S, 1, pairs] of the positions, the same for all heads."""
        dim = self.dim or encoding.rotary_dim(head_dim)
        theta = RotaryGeometry(dim, self.base).inv_freq()
        cos, sin = cos_sin(Frequencies.from_float64(theta), positions)
        return cos[..., None, :], sin[..., None, :]


class Layer:
    """One layer's attention as an encoding changes it.

    positions: [#B, S], of the whole window. last: only these last tokens are queries; None: all.
    """

    def __init__(self, encoding, parameters, positions, head_dim, last=None, rotation=None):
        self.encoding, self.rotation = encoding, rotation or Rotation()
        self.cos, self.sin = self.rotation.cos_sin(encoding, head_dim, positions)
        numbers = encoding.layer_params(parameters, positions, self.cos.shape[-1])
        self.numbers = {name: x[0] for name, x in numbers.items()}
        self.keys = positions.shape[-1]
        self.queries = last or self.keys

    def turned(self, q, k):
        """Return queries [B, K, G, T, H] / √H and keys [B, K, S, H], turned."""
        layout, groups = self.rotation.layout, k.shape[2]
        cos, sin = self.cos, self.sin
        q = self.encoding.rotate_queries(
            self.numbers, q, cos[:, -self.queries :], sin[:, -self.queries :], layout
        )
        k = self.encoding.rotate_keys(self.numbers, k, cos, sin, layout)
        q = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
        q = q.reshape(*q.shape[:2], groups, -1, q.shape[-1])
        return q.transpose(0, 2, 3, 1, 4), k.transpose(0, 2, 1, 3)

    def logits(self, q, k, block=None):
        """Return logits [B, N, T, S] before the causal mask. q: [B, T, N, H], k: [B, S, K, H].

        block: tokens per block, with padding at the front; None: the whole window at once.
        """
        return jax.jit(self._logits, static_argnums=2)(q, k, block)

    def attend(self, q, k, v, block=None):
        """Return the attention's output [B, N, T, H]."""
        return jax.jit(self._attend, static_argnums=3)(q, k, v, block)

    def _logits(self, q, k, block):
        q, k = self.turned(q, k)
        first = self.keys - self.queries
        if block is None:
            index = jnp.arange(first, self.keys), jnp.arange(self.keys)
            return _merged(self.encoding.scores(self.numbers, q, k, *index))
        q, k = _blocks(q, -2, block), _blocks(k, -2, block)
        tiles = self._per_pair(
            lambda i, j, *index: self.encoding.scores(self.numbers, q[i], k[j], *index),
            q.shape[0], k.shape[0], block,
        )  # fmt: skip
        whole = jnp.concatenate(jnp.concatenate(tiles.swapaxes(0, 1), axis=-1), axis=-2)
        return _merged(whole[..., -self.queries :, -self.keys :])

    def _attend(self, q, k, v, block):
        logits = self._logits(q, k, block)
        batch = logits.shape[0]
        hidden = np.arange(self.keys) > np.arange(self.keys)[-self.queries :, None]
        logits = logits + np.where(hidden, -np.inf, 0).astype(np.float32)[None, None]
        weights = jax.nn.softmax(logits)
        weights = weights.reshape(batch, k.shape[2], -1, *weights.shape[2:])
        out = jnp.einsum("bkgts,bskh->bkgth", weights, v)
        if self.encoding.values is None:
            return _merged(out)
        return _merged(out + self._values(weights, block))

    def _values(self, weights, block):
        first = self.keys - self.queries
        if block is None:
            index = jnp.arange(first, self.keys), jnp.arange(self.keys)
            return self.encoding.values(self.numbers, weights, *index)
        tiles = _blocks(_blocks(weights, -1, block), -2, block)
        added = self._per_pair(
            lambda i, j, *index: self.encoding.values(self.numbers, tiles[i, j], *index),
            *tiles.shape[:2], block,
        )  # fmt: skip
        return jnp.concatenate(added.sum(1), axis=-2)[..., -self.queries :, :]

    def _per_pair(self, f, queries, keys, block):
        """Apply f(i, j, query_index, key_index) to all pairs of blocks: [queries, keys, …]."""

        def of_pair(pair):
            i, j = pair
            ends = (i - queries) * block + self.keys, (j - keys) * block + self.keys
            return f(i, j, *(end + jnp.arange(block) for end in ends))

        i, j = jnp.meshgrid(jnp.arange(queries), jnp.arange(keys), indexing="ij")
        found = jax.lax.map(of_pair, (i.reshape(-1), j.reshape(-1)))
        return found.reshape(queries, keys, *found.shape[1:])


def _blocks(x, axis, block):
    """Cut an axis into blocks on a new leading axis, with padding at its front."""
    padding = [(0, 0)] * x.ndim
    padding[axis] = (-x.shape[axis] % block, 0)
    x = jnp.pad(x, padding)
    return jnp.stack(jnp.split(x, x.shape[axis] // block, axis=axis))


def _merged(x):
    """Make one axis of the heads: [B, K, G, …] becomes [B, N, …]."""
    return x.reshape(x.shape[0], -1, *x.shape[3:])


def slow_logits(q, k, head_dim):
    """Return q·k/√H in float64 numpy: [B, N, T, S]."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    k = np.repeat(k, q.shape[2] // k.shape[2], axis=2)
    return np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(head_dim)


def random_qkv(length, sizes=SIZES, last=None, seed=1):
    """Return q [2, T, N, H] of the last tokens, k and v [2, S, K, H]."""
    q = normal(seed, 2, last or length, sizes.heads, sizes.head_dim)
    k, v = (normal(seed + n, 2, length, KV_HEADS, sizes.head_dim) for n in (1, 2))
    return q, k, v


def causal(logits):
    """Return only the logits that a causal mask leaves, less that of the query's own key.

    Scores need only be right up to a constant per query. logits: [B, N, S, S]; as one vector.
    """
    logits = np.asarray(logits)
    own = np.diagonal(logits, axis1=-2, axis2=-1)[..., None]
    return (logits - own)[..., np.tril(np.ones(logits.shape[-2:], bool))]
