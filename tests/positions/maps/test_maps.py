"""Position maps: relative positions, their settings, and attention against a double loop.

Notation as in the maps: i and j positions of a query and a key, d = i − j, L the window, n the
length.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from rope_jax.attention import BACKENDS
from rope_jax.attention.blockwise import banded_blockwise
from rope_jax.model.layers import LayerInputs, LayerKind, attend
from rope_jax.positions.bands import band_masks, rotations
from rope_jax.positions.encodings import RoPE
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import MAPS, AnyMap, relative_positions
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling

pytestmark = pytest.mark.usefixtures("compiled_quickly")

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
# 91 is no multiple of 6, so blocks of at most 16 need padding
LENGTH, WINDOW, GEOMETRY = 91, 24, RotaryGeometry(8, 100.0, 24)


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


def mapped_attention(map_, scaling, q, k, v, segment_ids, positions, backend, **more):
    """Return attention with a map, as a layer computes it."""
    layers = RotaryLayers(GEOMETRY)
    rotary = layers.rotary(scaling, positions, LENGTH)
    rotary = with_map(rotary, map_, layers, positions, window=WINDOW, seq_len=LENGTH)
    every = jax.tree.map(lambda leaf: leaf[0], rotations(rotary, jnp.asarray(positions)))
    scale = jnp.asarray(rotary.query_scale)[0]
    inputs = LayerInputs(every, scale, {}, segment_ids, None)
    kind = LayerKind(more.get("sliding_window"), masks=band_masks(rotary))
    return attend(q, k, v, inputs, kind, backend=backend, encoding=RoPE(), layout="half")


def slow_attention(r, theta, m, q, k, v, segment_ids=None, query_scale=1.0):
    """softmax(q_i · R(r(i, j)·θ) k_j · m²/√H)·v in float64, one pair of tokens at a time.

    r: [B, T, S], NaN where a key is hidden, or [B, T, S, pairs] in radians.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, length, heads, width = q.shape
    size, groups = k.shape[1], heads // k.shape[2]
    angles = r if r.ndim == 4 else r[..., None] * theta
    pairs = angles.shape[-1]
    out = np.zeros((batch, length, heads, v.shape[-1]))
    scale = np.broadcast_to(query_scale, (size,))
    for b in range(batch):
        for t in range(length):
            i = size - length + t
            seen = ~np.isnan(angles[b % len(angles), i, :, 0])
            if segment_ids is not None:
                seen &= np.asarray(segment_ids)[b] == segment_ids[b, i]
            for head in range(heads):
                one = q[b, t, head] * scale[i]
                logits = np.full(size, -np.inf)
                for j in np.flatnonzero(seen):
                    other, angle = k[b, j, head // groups], angles[b % len(angles), i, j]
                    turned = one[: 2 * pairs].reshape(2, pairs)
                    cos, sin = np.cos(angle), np.sin(angle)
                    # R(−angle) on the query: it is the key's distance that counts
                    first = turned[0] * cos - turned[1] * sin
                    second = turned[1] * cos + turned[0] * sin
                    rotated = np.concatenate([first, second]) @ other[: 2 * pairs] * m**2
                    logits[j] = (rotated + one[2 * pairs :] @ other[2 * pairs :]) / np.sqrt(width)
                weights = np.exp(logits - logits.max())
                out[b, t, head] = weights @ v[b, :, head // groups] / weights.sum()
    return out


def inputs(queries=LENGTH, heads=2, kv_heads=1, batch=1, width=8):
    rng = np.random.default_rng(queries)
    shapes = [(batch, queries, heads, width), *[(batch, LENGTH, kv_heads, width)] * 2]
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize("backend", ["xla", "blockwise"])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_attention_is_that_of_a_double_loop(name, backend, monkeypatch):
    # blocks that no border coincides with
    monkeypatch.setattr(
        BACKENDS["blockwise"], "attend_bands", functools.partial(banded_blockwise, block=16)
    )
    map_, r = map_and_relative(name)
    scaling = parse_scaling({"type": "none", "query_scale": {"type": "logn"}})
    q, k, v = inputs(queries=70)
    positions = np.arange(LENGTH, dtype=np.int32)[None]
    found = mapped_attention(map_, scaling, q, k, v, None, positions, backend)
    m = map_.bands(WINDOW, LENGTH)[0].attention_factor
    logn = np.maximum(1, np.log(np.arange(LENGTH) + 1) / np.log(WINDOW))
    wanted = slow_attention(r[None], GEOMETRY.inv_freq(), m, q, k, v, query_scale=logn)
    np.testing.assert_allclose(found, wanted, atol=3e-6)


def test_dual_chunk_reaches_as_far_as_its_largest_relative_position():
    # chunks of 30 tokens: no key is seen at more than 2 · 30 − 1, although s is above the window
    map_ = parse({"type": "dual_chunk", "chunk": 130, "local": 100})
    places = np.arange(512)
    assert np.nanmax(relative_positions(map_.bands(128, 512), places, places)) == 59
    map_.check_reach(128, 512)
    with pytest.raises(ValueError, match=r"chunk, local: 130, 10 put .* at distance 130, outside"):
        parse({"type": "dual_chunk", "chunk": 130, "local": 10}).check_reach(128, 512)


def far_frequencies(window, far):
    return parse({"type": "far_frequencies", "window": window, "far": {"type": far} | FACTORS[far]})


FACTORS = {"pi": {"factor": 5.0}, "ntk": {"factor": 6.0}, "none": {}}


def rotated(map_, backend="xla", segment_ids=None, positions=None, batch=1):
    positions = np.arange(LENGTH, dtype=np.int32)[None] if positions is None else positions
    q, k, v = inputs(heads=4, kv_heads=2, batch=batch)
    scaling = parse_scaling("none")
    return mapped_attention(map_, scaling, q, k, v, segment_ids, positions, backend)


def test_far_frequencies_are_the_definition_and_leaky_rerope_where_pi_divides_them():
    """The angle of a pair is θd below w, and θ'd + (θ − θ')w from w on (docs/positions.md)."""
    map_ = far_frequencies(13, "ntk")
    near = GEOMETRY.inv_freq()
    far = parse_scaling({"type": "ntk", "factor": 6.0}).scaled(GEOMETRY)[0]
    distance = (np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None]).astype(float)
    distance[distance < 0] = np.nan
    d = distance[..., None]
    angles = np.where(d < 13, near * d, far * d + (near - far) * 13)
    q, k, v = inputs(heads=4, kv_heads=2)
    np.testing.assert_allclose(
        rotated(map_), slow_attention(angles[None], None, 1.0, q, k, v), atol=3e-6
    )
    # continuous at w
    np.testing.assert_allclose(near * 13, far * 13 + (near - far) * 13, rtol=1e-12)
    leaky = parse({"type": "leaky_rerope", "window": 13, "k": 5.0})
    np.testing.assert_allclose(rotated(far_frequencies(13, "pi")), rotated(leaky), atol=1e-6)


def test_far_frequencies_of_no_scaling_are_plain_rotation():
    plain = parse({"type": "streaming", "sinks": 0, "recent": LENGTH})
    found = rotated(far_frequencies(13, "none"))
    np.testing.assert_allclose(found, rotated(plain), atol=1e-6)


def test_far_angles_stay_exact_a_million_tokens_away():
    """Fractional positions would be off by 6e-2 there; the frequencies are divided instead."""
    geometry = RotaryGeometry(8, 1e4, 128)
    layers, scaling = RotaryLayers(geometry), parse_scaling("none")
    positions = np.array([[1_000_003]], np.int32)
    map_ = parse({"type": "leaky_rerope", "window": 96, "k": 31_250.7})
    rotary = layers.rotary(scaling, positions)
    mapped = with_map(rotary, map_, layers, positions, window=128, seq_len=10**6)
    far = jax.tree.map(lambda leaf: leaf[0, 0, 0, 0], rotations(mapped, jnp.asarray(positions))[1])
    theta = geometry.inv_freq()
    query = theta / 31_250.7 * 1_000_003 + (theta - theta / 31_250.7) * 96
    np.testing.assert_allclose(far.query_cos, np.cos(query), atol=1e-6)
    np.testing.assert_allclose(far.key_sin, np.sin(theta / 31_250.7 * 1_000_003), atol=1e-6)


@pytest.mark.parametrize("name", ["rerope", "dual_chunk", "streaming"])
@pytest.mark.parametrize("backend", ["xla", "blockwise"])
def test_positions_restart_with_every_packed_document(name, backend, monkeypatch):
    monkeypatch.setattr(
        BACKENDS["blockwise"], "attend_bands", functools.partial(banded_blockwise, block=16)
    )
    map_, r = map_and_relative(name)
    starts = np.array([0, 37, 41])
    ids = np.searchsorted(starts, np.arange(LENGTH), side="right")[None].astype(np.int32)
    positions = (np.arange(LENGTH) - starts[ids[0] - 1])[None].astype(np.int32)
    found = rotated(map_, backend, jnp.asarray(ids), positions)
    of_pair = r[positions[0][:, None], positions[0][None]]
    q, k, v = inputs(heads=4, kv_heads=2)
    m = map_.bands(WINDOW, LENGTH)[0].attention_factor
    wanted = slow_attention(of_pair[None], GEOMETRY.inv_freq(), m, q, k, v, ids)
    np.testing.assert_allclose(found, wanted, atol=3e-6)


@pytest.mark.parametrize(
    ("settings", "resolved"),
    [
        ({"type": "rerope"}, "rerope+window=96"),
        ({"type": "leaky_rerope"}, "leaky_rerope+window=96+k=62.94"),
        ({"type": "leaky_rerope", "window": 64}, "leaky_rerope+window=64+k=31.48"),
        ({"type": "self_extend"}, "self_extend+window=64+group=32"),
        ({"type": "self_extend", "group": 16}, "self_extend+window=64+group=16"),
        ({"type": "dual_chunk"}, "dual_chunk+chunk=96+local=16"),
        ({"type": "streaming"}, "streaming+sinks=4+recent=123"),
        ({"type": "lm_infinite"}, "lm_infinite+sinks=10+recent=127"),
        ({"type": "string"}, "string+shift=42+local=4"),
        ({"type": "far_frequencies", "far": {"type": "ntk", "factor": 16.0}},
         "far_frequencies+window=64+far=ntk-16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_auto_follows_from_window_and_length(settings, resolved):
    """L = 128, n = 2,048."""
    map_ = parse(settings)
    assert map_.is_auto
    assert map_.at(128, 2048).label == resolved
    inside = map_.at(128, 128)
    assert inside is None if settings["type"] != "string" else inside.label == resolved


@pytest.mark.parametrize("name", sorted(set(MAPS) - {"string", "far_frequencies", "fitted"}))
@pytest.mark.parametrize(("window", "length"), [(128, 129), (128, 2048), (100, 333), (4096, 65536)])
def test_auto_stays_inside_the_window(name, window, length):
    map_ = parse({"type": name}).at(window, length)
    map_.check_reach(window, length)
    places = np.array([length - 1])
    r = relative_positions(map_.bands(window, length), places, np.arange(length))
    assert np.nanmax(r) <= window - 1


def test_leaky_rerope_reaches_as_far_as_k_says():
    with pytest.raises(ValueError, match=r"window, k: 64, 4 put the first of 512 tokens at dist"):
        parse({"type": "leaky_rerope", "window": 64, "k": 4.0}).check_reach(128, 512)
    parse({"type": "leaky_rerope", "window": 64, "k": 7.096}).check_reach(128, 512)


def test_self_extend_names_a_group_that_divides():
    with pytest.raises(ValidationError, match="group: 6 does not divide window 64; 4 does"):
        parse({"type": "self_extend", "window": 64, "group": 6})
