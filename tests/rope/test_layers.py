"""Layers that differ: the settings of each, the arrays that a model takes, and words for them.

Shapes: L layers, B batch, T length, d rotary dimension.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers, parse_scaling

GEOMETRY = RotaryGeometry(16, 1e4, 128)
NONE, YARN = parse_scaling("none"), parse_scaling({"type": "yarn", "factor": 4.0})
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
    same = (LayerOverride(), LayerOverride(base=1e4), LayerOverride(scaling=YARN))
    assert RotaryLayers(GEOMETRY, 6, same).frequencies(YARN).inv_freq.shape == (1, 1, 8)
    assert RotaryLayers(GEOMETRY, 6, same).frequencies(NONE).inv_freq.shape == (6, 1, 8)


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


def test_lengths_and_positions_by_row():
    dynamic = parse_scaling({"type": "dynamic_pi"})
    layers = RotaryLayers(GEOMETRY, 5, PATTERN)
    lengths = np.array([64, 256, 512])
    positions = np.arange(15, dtype=np.int32).reshape(3, 5)
    # only the fourth layer follows the length
    plain = GEOMETRY.inv_freq() / np.array([[1], [2], [4]])
    traced = jax.jit(layers.rotary, static_argnums=0)
    for rotary in (layers.rotary(dynamic, positions, lengths),
                   traced(dynamic, positions, jnp.asarray(lengths))):  # fmt: skip
        assert [leaf.shape for leaf in rotary.frequencies] == [(5, 3, 8), (5, 3, 8), (5, 3)]
        np.testing.assert_allclose(rotary.frequencies.inv_freq[3], plain, rtol=1e-6)
        local = np.tile(100.0 ** (-np.arange(8) / 8), (3, 3, 1))
        np.testing.assert_allclose(rotary.frequencies.inv_freq[:3], local, rtol=1e-6)
        np.testing.assert_array_equal(rotary.query_scale[:4], np.ones((4, 3, 5)))
        scale = 1 + 0.1 * np.log(1 + (positions + 1) // 8)
        np.testing.assert_allclose(rotary.query_scale[4], scale, rtol=3e-7)


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
    with pytest.raises(ValueError, match=r"^inv_freq: has one entry per layer; use for_layer"):
        explicit.frequencies(GEOMETRY)
    over = parse_scaling({"type": "resonance", "inner": explicit.model_dump()})
    wavelengths = 2 * np.pi / RotaryLayers(GEOMETRY, 3).frequencies(over).inv_freq[:, 0, 0]
    np.testing.assert_allclose(wavelengths, [63, 31, 21], rtol=1e-6)


def test_explicit_numbers_are_used_as_given():
    geometry = RotaryGeometry(8, 1e4, 128)
    given = [0.5, 0.25, 0.125, 0.0]
    made = parse_scaling({"type": "explicit", "inv_freq": given, "attention_factor": 1.5})
    assert made.frequencies(geometry).inv_freq.tolist() == given
    assert made.frequencies(geometry).attention_factor == 1.5
    by_factor = parse_scaling({"type": "explicit", "factors": [1, 2, 4, 8]}).frequencies(geometry)
    np.testing.assert_allclose(by_factor.inv_freq, [1.0, 0.05, 0.0025, 1.25e-4], rtol=1e-7)


def test_explicit_numbers_may_come_from_a_file(tmp_path):
    path = tmp_path / "fitted.json"
    path.write_text('{"factors": [1.5, 2.25], "attention_factor": 1.0625}')
    made = parse_scaling({"type": "explicit", "path": str(path)})
    path.unlink()
    given = {"type": "explicit", "factors": [1.5, 2.25], "attention_factor": 1.0625}
    assert made == parse_scaling(given)
    assert made.path is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "path: .*fitted.json cannot be read"),
        ("{", "path: .*fitted.json is not JSON"),
        ("[1, 2]", "path: .* may hold inv_freq, factors, attention_factor; it has no keys"),
        ('{"freq": [1]}', "path: .* may hold inv_freq, factors, attention_factor; it has freq"),
        ('{"inv_freq": [1, NaN]}', "inv_freq"),
        ('{"attention_factor": 2.0, "factors": [1, 2]}', "attention_factor: is given both"),
    ],
)
def test_bad_files_of_explicit_numbers_are_refused(tmp_path, content, message):
    path = tmp_path / "fitted.json"
    if content is not None:
        path.write_text(content)
    given = {"type": "explicit", "path": str(path)}
    if "is given both" in message:
        given["attention_factor"] = 1.5
    with pytest.raises(ValueError, match=message):
        parse_scaling(given)
