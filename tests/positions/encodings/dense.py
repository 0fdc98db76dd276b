"""Causal attention with a position encoding, written out: for the whole window, or in blocks.

Shapes: B batch, S tokens, N heads, K key-value heads, G = N/K, H head dim.
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


def layer_logits(encoding, parameters, q, k, positions, block=None, rotation=Rotation()):  # noqa: B008
    """Return logits [B, K, G, S, S] before the causal mask, and the layer's params.

    block: tokens per block, with padding at the front; None: the whole window at once.
    """
    cos, sin = rotation.cos_sin(encoding, q.shape[-1], positions)
    params = encoding.layer_params(parameters, positions, cos.shape[-1])
    params = {name: x[0] for name, x in params.items()}
    groups = k.shape[2]
    q = encoding.rotate_queries(params, q, cos, sin, rotation.layout)
    k = encoding.rotate_keys(params, k, cos, sin, rotation.layout).transpose(0, 2, 1, 3)
    q = q * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    q = q.reshape(*q.shape[:2], groups, -1, q.shape[-1]).transpose(0, 2, 3, 1, 4)
    if block is None:
        index = jnp.arange(q.shape[-2])
        return encoding.scores(params, q, k, index, index), params
    q, k = _blocks(q, -2, block), _blocks(k, -2, block)
    tiles = _per_pair(lambda i, j, *at: encoding.scores(params, q[i], k[j], *at), len(q), block)
    whole = jnp.concatenate(jnp.concatenate(tiles.swapaxes(0, 1), axis=-1), axis=-2)
    length = positions.shape[-1]
    return whole[..., -length:, -length:], params


def attend(encoding, parameters, q, k, v, positions, block=None):
    """Return the attention's output [B, N, S, H]."""
    logits, params = layer_logits(encoding, parameters, q, k, positions, block)
    length = logits.shape[-1]
    hidden = np.where(np.tri(length), 0, -np.inf).astype(np.float32)
    weights = jax.nn.softmax(logits + hidden[None, None, None])
    out = jnp.einsum("bkgts,bskh->bkgth", weights, v)
    if encoding.values is not None and block is None:
        out = out + encoding.values(params, weights, jnp.arange(length), jnp.arange(length))
    elif encoding.values is not None:
        tiles = _blocks(_blocks(weights, -1, block), -2, block)
        added = _per_pair(
            lambda i, j, *at: encoding.values(params, tiles[i, j], *at), len(tiles), block
        )
        out = out + jnp.concatenate(added.sum(1), axis=-2)[..., -length:, :]
    return out.reshape(out.shape[0], -1, *out.shape[3:])


def _per_pair(f, count, block):
    """Apply f(i, j, query_index, key_index) to all pairs of blocks; S is the end of the last."""

    def of_pair(pair):
        starts = (number * block - count * block + S for number in pair)
        return f(*pair, *(start + jnp.arange(block) for start in starts))

    found = jax.lax.map(of_pair, tuple(jnp.indices((count, count)).reshape(2, -1)))
    return found.reshape(count, count, *found.shape[1:])


def _blocks(x, axis, block):
    """Cut an axis into blocks on a new leading axis, with padding at its front."""
    padding = [(0, 0)] * x.ndim
    padding[axis] = (-x.shape[axis] % block, 0)
    x = jnp.pad(x, padding)
    return jnp.stack(jnp.split(x, x.shape[axis] // block, axis=axis))


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
