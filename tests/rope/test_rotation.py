"""The rotation of queries and keys: identities, layouts, dtypes and refusals.

test_forms.py compares it with the rotation's other forms.

Shapes: B batch, T length, N heads, d rotary dimension, D width of the residual stream.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling, rotate
from rope_jax.rope.forms import pair_dimensions, rotation_angles

GEOMETRY = RotaryGeometry(16, 1e4, 128)
NONE = parse_scaling({"type": "none"}).frequencies(GEOMETRY)
LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])
B, T, N, d = 2, 12, 3, 16


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def positions_to(bound, seed=0):
    return np.random.default_rng(seed).integers(0, bound, (B, T)).astype(np.int32)


@partial(jax.jit, static_argnames="layout")
def turn(x, positions, layout, frequencies):
    return rotate(x, *cos_sin(frequencies, positions), layout)


def turned(x, positions, layout, frequencies=NONE):
    return np.asarray(turn(x, positions, layout, frequencies))


@LAYOUTS
def test_norms_are_kept_pair_by_pair(layout):
    x = normal(B, T, N, d)
    out = turned(x, positions_to(10**6), layout)
    first, second = pair_dimensions(d // 2, layout)
    before, after = (np.hypot(y[..., first], y[..., second]) for y in (x, out))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert np.max(np.abs(out - x)) > 1


@LAYOUTS
def test_scores_depend_on_the_offset_alone(layout):
    q, k = normal(1, 1, N, d, seed=1), normal(1, 1, N, d, seed=2)
    q, k = (np.broadcast_to(x, (B, T, N, d)) for x in (q, k))
    offset = 37
    positions = positions_to(10**6)
    queries = turned(q, positions + offset, layout)
    keys = turned(k, positions, layout)
    scores = np.sum(queries * keys, -1)
    # All tokens have the same vectors: at any position, the score is that of positions 37 and 0.
    at_zero = np.zeros((B, T), np.int32)
    wanted = np.sum(turned(q, at_zero + offset, layout) * turned(k, at_zero, layout), -1)
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    other = np.sum(turned(q, at_zero + offset + 1, layout) * turned(k, at_zero, layout), -1)
    assert np.max(np.abs(other - wanted)) > 0.1


def test_layouts_agree_after_permuting_the_projection():
    width, positions = 24, positions_to(1000)
    x, weight = normal(B, T, width), normal(N * d, width, seed=1)
    # Rows of a head: (0, 1), (2, 3), … to evens first, then odds, as for HF's checkpoints.
    permuted = weight.reshape(N, d // 2, 2, width).swapaxes(1, 2).reshape(N * d, width)
    interleaved = turned((x @ weight.T).reshape(B, T, N, d), positions, "interleaved")
    half = turned((x @ permuted.T).reshape(B, T, N, d), positions, "half")
    np.testing.assert_allclose(
        interleaved.reshape(B, T, N, d // 2, 2).swapaxes(-1, -2).reshape(B, T, N, d),
        half,
        atol=1e-5,
    )
    # So their scores agree; those of one projection under both layouts do not.
    scores = [np.einsum("bsnd,btnd->bnst", y, y) for y in (interleaved, half)]
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-3)
    unpermuted = turned((x @ weight.T).reshape(B, T, N, d), positions, "half")
    mixed = np.einsum("bsnd,btnd->bnst", unpermuted, unpermuted)
    assert np.max(np.abs(mixed - scores[0])) > 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@LAYOUTS
def test_dimensions_past_the_rotary_ones_pass_through(layout, dtype):
    x = normal(B, T, N, d + 10).astype(dtype)
    positions = positions_to(1000)
    out = turned(x, positions, layout)
    assert np.array_equal(out[..., d:], x[..., d:])
    # The head's width plays no part: the rotated dimensions are as in a head of width d.
    assert np.array_equal(out[..., :d], turned(x[..., :d], positions, layout))


def test_a_head_narrower_than_the_rotation_is_refused():
    with pytest.raises(
        ValueError, match=r"^x: has heads of 8 dimensions, fewer than the 16 to rotate"
    ):
        rotate(normal(B, T, N, 8), *cos_sin(NONE, positions_to(10)))


@LAYOUTS
@pytest.mark.parametrize("factor", [2, 8])
def test_pi_is_none_at_divided_positions(factor, layout):
    x, positions = normal(B, T, N, d), positions_to(10**5)
    pi = parse_scaling({"type": "pi", "factor": factor}).frequencies(GEOMETRY)
    np.testing.assert_allclose(
        turned(x, factor * positions, layout, pi), turned(x, positions, layout), atol=3e-6
    )


@LAYOUTS
def test_bfloat16_is_rounded_once_at_the_end(layout):
    x, positions = normal(B, T, N, d).astype(jnp.bfloat16), positions_to(1000)
    out = turned(x, positions, layout)
    assert out.dtype == jnp.bfloat16
    wanted = turned(x.astype(np.float32), positions, layout).astype(jnp.bfloat16)
    assert np.array_equal(out, wanted)
    # A product in bfloat16 would differ.
    angles = rotation_angles(positions, GEOMETRY.inv_freq())[:, :, None]
    cos, sin = np.cos(angles).astype(jnp.bfloat16), np.sin(angles).astype(jnp.bfloat16)
    first, second = pair_dimensions(d // 2, layout)
    product = x[..., first] * cos - x[..., second] * sin
    assert product.dtype == jnp.bfloat16
    assert not np.array_equal(product, out[..., first])


@LAYOUTS
def test_m_scales_only_the_rotated_dimensions(layout):
    x, positions = normal(B, T, N, d + 4), positions_to(1000)
    scaled = NONE._replace(attention_factor=np.float32(1.5))
    plain, out = (turned(x, positions, layout, f) for f in (NONE, scaled))
    np.testing.assert_allclose(out[..., :d], 1.5 * plain[..., :d], rtol=1e-6, atol=1e-6)
    assert np.array_equal(out[..., d:], x[..., d:])


@pytest.mark.usefixtures("wrong_types")
def test_an_unknown_layout_is_named():
    with pytest.raises(ValueError, match=r"^layout: 'neox' is neither"):
        rotate(normal(B, T, N, d), *np.ones((2, T, d // 2), np.float32), "neox")
