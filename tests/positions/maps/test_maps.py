"""Position maps: relative positions, and attention against their definitions.

Notation as in the maps: i and j positions of a query and a key, d = i − j, L the window, n the
length.
"""

import jax
import numpy as np
import pytest
from pydantic import TypeAdapter

from rope_jax.positions.bands import rotations
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import AnyMap, relative_positions
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling
from tests.positions.maps.dense import (
    GEOMETRY,
    LENGTH,
    POSITIONS,
    QUERIES,
    WINDOW,
    dense_attention,
    layer_attention,
)

parse = TypeAdapter(AnyMap).validate_python
DISTANCES = np.array([0, 1, 15, 41, 42, 63, 64, 65, 100, 127])
HIDDEN = np.nan


@pytest.mark.parametrize(
    ("settings", "largest", "r"),
    [
        ({"type": "rerope", "window": 64}, 64, [0, 1, 15, 41, 42, 63, 64, 64, 64, 64]),
        ({"type": "leaky_rerope", "window": 64, "k": 8}, 119.875,
         [0, 1, 15, 41, 42, 63, 64, 64.125, 68.5, 71.875]),
        ({"type": "self_extend", "window": 64, "group": 8}, 119,
         [0, 1, 15, 41, 42, 63, 64, 64, 68, 71]),
        ({"type": "dual_chunk", "chunk": 96, "local": 16}, 96,
         [0, 1, 15, 26, 27, 48, 49, 50, 85, 32]),
        ({"type": "lm_infinite", "recent": 127, "sinks": 4}, 127,
         [0, 1, 15, 41, 42, 63, 64, 65, 100, HIDDEN]),
        ({"type": "streaming", "sinks": 4, "recent": 123}, 127,
         [0, 1, 15, 41, 42, 63, 64, 65, 100, HIDDEN]),
        ({"type": "string", "shift": 42, "local": 4}, 473, [0, 1, 15, 41, 4, 25, 26, 27, 62, 89]),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_relative_positions_golden(settings, largest, r):
    """Row i = 511 of 512 with L = 128; values counted by hand in the authors' code."""
    places = np.arange(512)
    found = relative_positions(parse(settings).bands(128, 512), places, places)
    assert np.nanmax(found) == largest
    np.testing.assert_array_equal(found[511, 511 - DISTANCES], np.array(r, float))


# r(i, j) as the papers and the authors' code define it, None where a key is hidden.
def rerope(i, j, w):
    return i - j if i - j < w else w


def leaky(i, j, w, k):
    return i - j if i - j < w else w + (i - j - w) / k


def self_extend(i, j, w, g):
    return i - j if i - j < w else i // g - j // g + w - w // g


def dual_chunk(i, j, s, w):
    c = s - w
    if i // c == j // c:
        return i - j
    if i // c == j // c + 1:
        return min(i % c + c, s) - j % c
    return min(2 * c - 1, s) - j % c


def lm_infinite(i, j, b, g):
    return i - j if i - j < b else b if j < g else None


def string(i, j, s, w):
    return i - j if i - j < s else i - j - s + w


def streaming(i, j, r, s):
    """Evict tokens one by one: the cache holds the first s and the last r, then the query."""
    cache = []
    for token in range(i + 1):
        if len(cache) > s + r:
            del cache[s]
        cache.append(token)
    return len(cache) - 1 - cache.index(j) if j in cache else None


DEFINITIONS = {
    "rerope": (rerope, {"window": 13}, (13,)),
    "leaky_rerope": (leaky, {"window": 13, "k": 5.0}, (13, 5)),
    "self_extend": (self_extend, {"window": 12, "group": 4}, (12, 4)),
    "dual_chunk": (dual_chunk, {"chunk": 17, "local": 5}, (17, 5)),
    "streaming": (streaming, {"recent": 14, "sinks": 3}, (14, 3)),
    "lm_infinite": (lm_infinite, {"recent": 14, "sinks": 3}, (14, 3)),
    "string": (string, {"shift": 13, "local": 2}, (13, 2)),
}


def map_and_relative(name):
    """Return a small map, and its r(i, j) by the definition, NaN where a key is hidden."""
    definition, settings, numbers = DEFINITIONS[name]
    r = np.full((LENGTH, LENGTH), np.nan)
    for i in range(LENGTH):
        for j in range(i + 1):
            value = definition(i, j, *numbers)
            r[i, j] = np.nan if value is None else value
    return parse({"type": name} | settings), r


@pytest.mark.parametrize("name", DEFINITIONS)
def test_bands_are_the_definition_and_hold_every_key_once(name):
    map_, wanted = map_and_relative(name)
    places = np.arange(LENGTH)
    bands = map_.bands(WINDOW, LENGTH)
    np.testing.assert_allclose(relative_positions(bands, places, places), wanted, rtol=1e-12)
    distance = places[:, None] - places
    counts = sum(
        (b.mask.by_distance(distance) & b.mask.by_document_position(places, places)).astype(int)
        for b in bands
    )
    np.testing.assert_array_equal(counts, ~np.isnan(wanted))


def check_attention(map_, angles, m, backend):
    """Compare a layer's attention, with a map and logn, with angles [S, S, pairs] by position."""
    layers = RotaryLayers(GEOMETRY)
    scaling = parse_scaling({"type": "none", "query_scale": {"type": "logn"}})
    rotary = layers.rotary(scaling, POSITIONS, LENGTH)
    rotary = with_map(rotary, map_, layers, POSITIONS, window=WINDOW, seq_len=LENGTH)
    queries = POSITIONS[0, -QUERIES:]
    angles = angles[queries[:, None], POSITIONS[0]][None]
    logn = np.maximum(1, np.log(queries + 1) / np.log(WINDOW))
    wanted = dense_attention(angles, m**2, logn[None])
    np.testing.assert_allclose(layer_attention(rotary, backend), wanted, atol=3e-6)


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "blockwise") for name in DEFINITIONS), ("dual_chunk", "xla"), ("streaming", "xla")],
)
def test_attention_is_that_of_the_definition(name, backend):
    map_, r = map_and_relative(name)
    m = 1 + 0.05 * np.log(LENGTH / WINDOW) if name == "dual_chunk" else 1
    check_attention(map_, r[..., None] * GEOMETRY.inv_freq(), m, backend)


def test_far_frequencies_are_the_definition():
    """The angle of a pair is θd below w, and θ'd + (θ − θ')w from w on (docs/positions.md)."""
    ntk = {"type": "ntk", "factor": 6.0}
    map_ = parse({"type": "far_frequencies", "window": 13, "far": ntk})
    near, far = GEOMETRY.inv_freq(), parse_scaling(ntk).scaled(GEOMETRY)[0]
    d = (np.arange(LENGTH)[:, None] - np.arange(LENGTH)).astype(float)[..., None]
    check_attention(map_, np.where(d < 13, near * d, far * d + (near - far) * 13), 1, "xla")


def test_far_angles_stay_exact_a_million_tokens_away():
    """Fractional positions would be off by 6e-2 there; the frequencies are divided instead."""
    geometry = RotaryGeometry(8, 1e4, 128)
    layers, scaling = RotaryLayers(geometry), parse_scaling("none")
    positions = np.array([[1_000_003]], np.int32)
    map_ = parse({"type": "leaky_rerope", "window": 96, "k": 31_250.7})
    rotary = layers.rotary(scaling, positions)
    mapped = with_map(rotary, map_, layers, positions, window=128, seq_len=10**6)
    far = jax.tree.map(lambda leaf: leaf[0, 0, 0, 0], jax.jit(rotations)(mapped, positions)[1])
    theta = geometry.inv_freq()
    query = theta / 31_250.7 * 1_000_003 + (theta - theta / 31_250.7) * 96
    np.testing.assert_allclose(far.query_cos, np.cos(query), atol=1e-6)
    np.testing.assert_allclose(far.key_sin, np.sin(theta / 31_250.7 * 1_000_003), atol=1e-6)
