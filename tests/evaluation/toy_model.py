"""A toy model and documents that the tests of the sweep share."""

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.evaluation import sweep
from rope_jax.rope import (
    RotaryGeometry,
    cos_sin,
)

BOS = 99


GEOMETRY = RotaryGeometry(rotary_dim=8, base=100.0, train_length=16)


LENGTHS = [8, 16, 24, 64]


PARAMS = {
    "cos": np.float32([0.5, -0.25, 0.125, 1.0]),
    "sin": np.float32([0.3, 0.2, -0.7, 0.4]),
    "context": np.float32(0.01),
}


# 20 of them or more can be read at every length, so that documents are what intervals resample.
DOCUMENTS = [
    np.random.default_rng(size).integers(0, 90, size)
    for size in (64, 150, 65, 90, 40, 331, *range(66, 82))
]


def nll_fn(params, tokens, rotary):
    """NLL that depends on the position's angles, on all tokens before, and on the target."""
    frequencies = jax.tree.map(lambda leaf: leaf[0], rotary.frequencies)  # the one layer's
    cos, sin = cos_sin(frequencies, jnp.arange(tokens.shape[1] - 1)[None])
    by_position = (cos @ params["cos"] + sin @ params["sin"]) * rotary.query_scale[0]
    context = jnp.cumsum(tokens[:, :-1], axis=1) % 101
    by_text = context.astype(jnp.float32) * params["context"] + tokens[:, 1:].astype(jnp.float32)
    return by_text + by_position


def reference(window, inv_freq, m=1.0):
    """Compute the same for one window of n + 1 tokens, in float64."""
    angles = np.arange(len(window) - 1)[:, None] * inv_freq
    by_position = m * (np.cos(angles) @ PARAMS["cos"] + np.sin(angles) @ PARAMS["sin"])
    return 0.01 * (np.cumsum(window[:-1]) % 101) + window[1:] + by_position


def cheap_nll(params, tokens, rotary):
    """Return an NLL that also depends on tokens, position and frequencies, but compiles fast."""
    by_row = rotary.frequencies.inv_freq.sum((0, 2)) * rotary.frequencies.attention_factor.sum(0)
    position = jnp.arange(tokens.shape[1] - 1, dtype=jnp.float32)[None]
    return by_row[:, None] * position + tokens[:, 1:].astype(jnp.float32)


def run(scalings=("trained",), lengths=LENGTHS, documents=DOCUMENTS, nll=nll_fn, **settings):
    settings = {"params": PARAMS, "geometry": GEOMETRY, "bos_id": BOS, "max_blocks": 2} | settings
    return sweep(nll, list(scalings), lengths, documents, **settings)


def plain_frequencies(base=100.0):
    return base ** (-np.arange(0, 8, 2) / 8)


def figures(result):
    """Return {(entry, protocol, length): measurement}."""
    return {(m.entry, m.protocol, m.length): m for m in result.measurements}


def of_last(nll):
    """Make an nll_of_last from an nll_fn; it fails if asked for all targets."""

    def function(params, tokens, rotary, last):
        assert last < tokens.shape[1] - 1
        return nll(params, tokens, rotary)[:, -last:]

    return function
