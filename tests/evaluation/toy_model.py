"""A toy model and documents that the tests of the sweep share."""

import functools
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import TypeAdapter

from rope_jax.evaluation import sweep
from rope_jax.positions.maps import AnyMap
from rope_jax.protocols import PROTOCOLS
from rope_jax.protocols.base import make_streams
from rope_jax.rope import RotaryGeometry, cos_sin

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
LEAKY = {"type": "leaky_rerope", "window": 8, "k": 40.0}
LOGN = {"type": "none", "query_scale": {"type": "logn"}, "name": "logn"}
SINKS = {"type": "streaming", "sinks": 2, "recent": 9}
parse_map = TypeAdapter(AnyMap).validate_python
_PROGRAMS = defaultdict(dict)


def nll_fn(params, tokens, rotary):
    """NLL that depends on the position's angles, on all tokens before, and on the target."""
    frequencies = jax.tree.map(lambda leaf: leaf[0], rotary.frequencies)  # the one layer's
    cos, sin = cos_sin(frequencies, jnp.arange(tokens.shape[1] - 1)[None])
    by_position = (cos @ params["cos"] + sin @ params["sin"]) * rotary.query_scale[0]
    context = jnp.cumsum(tokens[:, :-1], axis=1) % 101
    by_text = context.astype(jnp.float32) * params["context"] + tokens[:, 1:].astype(jnp.float32)
    return by_text + by_position


def reference(tokens, inv_freq, m=1.0, query_scale=1.0):
    """Compute the same for windows [W, n + 1], in float64."""
    angles = np.arange(tokens.shape[1] - 1)[:, None] * inv_freq
    by_position = m * (np.cos(angles) @ PARAMS["cos"] + np.sin(angles) @ PARAMS["sin"])
    context = np.cumsum(tokens[:, :-1], axis=1) % 101
    return 0.01 * context + tokens[:, 1:] + by_position * query_scale


def cheap_nll(params, tokens, rotary):
    """Return an NLL that also depends on tokens, position, frequencies and every number of a map.

    It compiles fast.
    """
    by_row = rotary.frequencies.inv_freq.sum((0, 2)) * rotary.frequencies.attention_factor.sum(0)
    own = jnp.arange(tokens.shape[1] - 1, dtype=jnp.int32)[None, None]
    nll = by_row[:, None] * own[0].astype(jnp.float32) + tokens[:, 1:].astype(jnp.float32)
    for number, band in enumerate(rotary.bands, start=1):
        places = [own if x is None else x for x in (band.query_positions, band.key_positions)]
        by_place = (places[0] - places[1] // 2)[0].astype(jnp.float32)
        frequencies = (band.frequencies.inv_freq[0, :, 0] * (1 + jnp.arange(4.0)[None])).sum(-1)
        m = band.frequencies.attention_factor[0, :, 0]
        weight = number + 0.01 * (band.mask.beyond or 1)
        nll = nll + weight * by_place * (frequencies * m)[:, None]
    return nll


def recording():
    """Return a model that is compiled anew, and the shapes of tokens that it is compiled for."""
    shapes = []

    def recorded(params, tokens, rotary):
        shapes.append(tokens.shape)
        return cheap_nll(params, tokens, rotary)

    return recorded, shapes


def never_read(params, tokens, rotary):
    """A model for tests of what is refused before it is traced."""
    raise AssertionError("traced")


@functools.cache
def of_last(nll):
    """Make an nll_of_last from an nll_fn; it fails if asked for all targets."""

    def function(params, tokens, rotary, last):
        assert last < tokens.shape[1] - 1
        return nll(params, tokens, rotary)[:, -last:]

    return function


@functools.cache
def windows_of(protocol, length, lengths=tuple(LENGTHS), bos="document"):
    """Return each window's document, its tokens [W, n + 1], and which targets [W, n] are scored."""
    streams = make_streams(
        DOCUMENTS, longest=lengths[-1], max_documents=64, bos=bos, bos_ids=(BOS,), seed=0
    )
    settings = {"targets": lengths[0] // 2, "max_blocks": 2, "stride": 5, "seed": 0}
    windows = PROTOCOLS[protocol](streams, lengths=lengths, **settings).windows(length)
    scored = np.arange(1, length + 1) >= windows.first[:, None]
    return windows.document, streams.cut(windows, length).astype(int), scored


def run(scalings=("trained",), lengths=LENGTHS, documents=DOCUMENTS, nll=cheap_nll, **settings):
    """Sweep a toy model. Tests share its programs, unless they count them with programs={}."""
    defaults = {"params": PARAMS, "geometry": GEOMETRY, "bos_id": BOS, "max_blocks": 2}
    settings = defaults | {"takes_maps": True} | settings
    settings.setdefault("programs", _PROGRAMS[nll, settings.get("nll_of_last")])
    return sweep(nll, list(scalings), lengths, documents, **settings)


def gib(tokens):
    """Return the memory budget for this many tokens."""
    return tokens * 2**14 / 2**30


def figures(result):
    """Return {(entry, protocol, length): measurement}."""
    return {(m.entry, m.protocol, m.length): m for m in result.measurements}


def assert_equal(found, wanted):
    """Both results have the same measurements, to the last digit."""
    assert len(found.measurements) == len(wanted.measurements)
    for a, b in zip(found.measurements, wanted.measurements, strict=True):
        assert (a.entry, a.protocol, a.length) == (b.entry, b.protocol, b.length)
        assert (a.scaling, a.map, a.targets) == (b.scaling, b.map, b.targets)
        np.testing.assert_array_equal(a.sums[:2], b.sums[:2])


class Interrupting(dict):
    """A journal that is interrupted after a number of entries."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def __setitem__(self, key, value):
        if len(self) == self.most:
            raise KeyboardInterrupt
        super().__setitem__(key, value)
