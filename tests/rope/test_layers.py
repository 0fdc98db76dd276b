"""Layers that differ: the settings of each, and the arrays that a model takes.

Shapes: L layers, B batch, T length, d rotary dimension.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers, parse_scaling

GEOMETRY = RotaryGeometry(16, 1e4, 128)
NONE, YARN = parse_scaling({"type": "none"}), parse_scaling({"type": "yarn", "factor": 4.0})
DROPE = parse_scaling({"type": "drope", "query_scale": {"type": "llama4", "floor_scale": 8}})
POSITIONS = np.arange(20, dtype=np.int32)[None]
# local layers at their own base, unscaled; the fourth is global; the fifth has no positions
PATTERN = (
    *[LayerOverride(base=100.0, scaling=NONE)] * 3,
    LayerOverride(),
    LayerOverride(scaling=DROPE),
)


def test_identical_layers_share_one_row():
    rotary = RotaryLayers(GEOMETRY, 6).rotary(YARN, POSITIONS)
    assert [leaf.shape for leaf in rotary.frequencies] == [(1, 1, 8), (1, 1, 8), (1, 1)]
    assert rotary.query_scale.shape == (1, 1, 20)
    for leaf, one in zip(rotary.frequencies, YARN.frequencies(GEOMETRY), strict=True):
        np.testing.assert_array_equal(leaf[0, 0], one)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(rotary))


def test_a_pattern_repeats():
    layers = RotaryLayers(GEOMETRY, 12, PATTERN)
    rotary = layers.rotary(YARN, POSITIONS)
    assert rotary.frequencies.inv_freq.shape == (12, 1, 8)
    local = NONE.frequencies(RotaryGeometry(16, 100.0, 128)).inv_freq
    for layer in range(12):
        kind = layer % 5
        wanted = {3: YARN.frequencies(GEOMETRY).inv_freq, 4: np.zeros(8)}.get(kind, local)
        np.testing.assert_array_equal(rotary.frequencies.inv_freq[layer, 0], wanted)
        scale = rotary.query_scale[layer, 0]
        assert (scale[-1] > 1) == (kind == 4), layer
    assert layers.has_query_scale(YARN)
    assert not RotaryLayers(GEOMETRY, 12, PATTERN[:4]).has_query_scale(YARN)


def test_a_pattern_of_identical_layers_shares_one_row():
    same = (LayerOverride(), LayerOverride(base=1e4), LayerOverride(scaling=YARN))
    assert RotaryLayers(GEOMETRY, 6, same).frequencies(YARN).inv_freq.shape == (1, 1, 8)
    assert RotaryLayers(GEOMETRY, 6, same).frequencies(NONE).inv_freq.shape == (6, 1, 8)


def test_lengths_by_row_leave_length_independent_layers_unchanged():
    dynamic = parse_scaling({"type": "dynamic_pi"})
    layers = RotaryLayers(GEOMETRY, 2, (LayerOverride(), LayerOverride(scaling=NONE)))
    for lengths in (np.array([64, 256, 512]), jnp.asarray([64, 256, 512])):
        frequencies = layers.frequencies(dynamic, lengths)
        assert [leaf.shape for leaf in frequencies] == [(2, 3, 8), (2, 3, 8), (2, 3)]
        plain = GEOMETRY.inv_freq()
        np.testing.assert_allclose(frequencies.inv_freq[0, 2], plain / 4, rtol=1e-6)
        np.testing.assert_allclose(frequencies.inv_freq[1, 2], plain, rtol=1e-6)


def test_explicit_lists_go_to_their_layers():
    rows = [[0.1 * (layer + 1)] * 8 for layer in range(3)]
    explicit = parse_scaling(
        {"type": "explicit", "inv_freq": rows, "attention_factor": [1.0, 2.0, 3.0]}
    )
    frequencies = RotaryLayers(GEOMETRY, 3).frequencies(explicit)
    np.testing.assert_allclose(frequencies.inv_freq[:, 0], rows, rtol=1e-6)
    np.testing.assert_array_equal(frequencies.attention_factor, [[1], [2], [3]])
    with pytest.raises(ValueError, match=r"^inv_freq: 3 entries for 4 layers$"):
        RotaryLayers(GEOMETRY, 4).frequencies(explicit)
    over = parse_scaling({"type": "resonance", "inner": explicit.model_dump()})
    np.testing.assert_allclose(
        2 * np.pi / np.float64(RotaryLayers(GEOMETRY, 3).frequencies(over).inv_freq[:, 0, 0]),
        [63, 31, 21],
        rtol=1e-6,
    )


def test_query_scales_follow_traced_positions_by_row():
    layers = RotaryLayers(GEOMETRY, 5, PATTERN)
    positions = np.array([[0, 1, 2, 0, 1], [5, 6, 7, 8, 9]], np.int32)
    scale = jax.jit(lambda p: layers.query_scale(YARN, p))(positions)
    assert scale.shape == (5, 2, 5)
    np.testing.assert_array_equal(scale[:4], np.ones((4, 2, 5)))
    np.testing.assert_allclose(scale[4], DROPE.query_scale_at(GEOMETRY, positions), rtol=3e-7)
