"""The three forms of the rotation: equal to each other, and `rotate` and `cos_sin` equal to them.

The identities are those that docs/rope.md proves. Shapes: B batch, T length, N heads, d rotary
dimension.
"""

from functools import partial

import jax
import numpy as np
import pytest
from scipy.linalg import expm

from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling, rotate
from rope_jax.rope.forms import (
    pair_dimensions,
    rotate_by_matrix,
    rotate_complex,
    rotate_elementwise,
    rotate_half,
    rotation_angles,
    rotation_matrix,
)

GEOMETRY = RotaryGeometry(64, 1e4, 4096)
THETA = GEOMETRY.inv_freq()
FORMS = {"complex": rotate_complex, "matrix": rotate_by_matrix, "elementwise": rotate_elementwise}
LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])
# heads that are rotated as a whole, and by their first 64 of 80 dimensions
HEADS = pytest.mark.parametrize("head_dim", [64, 80])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def positions_to(bound, *shape):
    positions = np.random.default_rng(bound).integers(0, bound, shape)
    positions.flat[:3] = 0, 1, bound - 1
    return positions


def turned(x, positions, layout="half"):
    """Rotate x [..., 64] by the unscaled angles at positions [...]."""
    return rotate_complex(x, rotation_angles(np.asarray(positions), THETA), layout)


# The forms against each other and against values worked out by hand


@LAYOUTS
@HEADS
@pytest.mark.parametrize("name", ["matrix", "elementwise"])
def test_the_forms_are_equal(name, head_dim, layout):
    x = normal(2, 50, head_dim)
    angles = rotation_angles(positions_to(10**7, 2, 50), THETA)
    wanted = rotate_complex(x, angles, layout)
    np.testing.assert_allclose(FORMS[name](x, angles, layout), wanted, atol=1e-14)
    np.testing.assert_array_equal(wanted[..., 64:], x[..., 64:])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_rotation_by_hand(form):
    # d 4: a quarter turn of the first pair, an eighth of the second; the fifth dimension stays
    angles, h = np.array([np.pi / 2, np.pi / 4]), np.sqrt(0.5)
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    half = [-3, 2 * h - 4 * h, 1, 4 * h + 2 * h, 5]  # pairs (1, 3) and (2, 4)
    np.testing.assert_allclose(form(x, angles, "half"), half, atol=1e-14)
    interleaved = [-2, 1, 3 * h - 4 * h, 4 * h + 3 * h, 5]  # pairs (1, 2) and (3, 4)
    np.testing.assert_allclose(form(x, angles, "interleaved"), interleaved, atol=1e-14)


@LAYOUTS
def test_the_matrix_is_the_exponential_of_its_generator(layout):
    # R_p = exp(p·G) with G skew-symmetric, which has R_m·R_n = R_(m+n) as a consequence
    first, second = pair_dimensions(32, layout)
    generator = np.zeros((64, 64))
    generator[second, first], generator[first, second] = THETA, -THETA
    for position in (1, 37):
        matrix = rotation_matrix(position * THETA, 64, layout)
        np.testing.assert_allclose(matrix, expm(position * generator), atol=1e-12)


def test_the_matrix_has_a_block_for_each_pair():
    matrix = rotation_matrix(3 * THETA, 64, "interleaved")
    blocks = matrix.reshape(32, 2, 32, 2).swapaxes(1, 2)
    assert not blocks[~np.eye(32, dtype=bool)].any()
    cos, sin = np.cos(3 * THETA), np.sin(3 * THETA)
    wanted = np.array([[cos, -sin], [sin, cos]]).transpose(2, 0, 1)
    np.testing.assert_array_equal(blocks[np.arange(32), np.arange(32)], wanted)


@LAYOUTS
def test_rotate_half_is_a_quarter_turn(layout):
    x = normal(3, 64)
    quarter = rotate_complex(x, np.full(32, np.pi / 2), layout)
    np.testing.assert_allclose(rotate_half(x, layout), quarter, atol=1e-14)


def test_rotate_half_swaps_the_halves():
    x = np.arange(6.0)
    assert rotate_half(x).tolist() == [-3, -4, -5, 0, 1, 2]
    assert rotate_half(x, "interleaved").tolist() == [-1, 0, -3, 2, -5, 4]


@pytest.mark.usefixtures("wrong_types")
def test_an_unknown_layout_is_named():
    for form in FORMS.values():
        with pytest.raises(ValueError, match=r"^layout: 'neox' is neither"):
            form(np.ones(64), THETA, "neox")


# The models' rotation against the forms


@partial(jax.jit, static_argnames="layout")
def model_rotation(x, positions, frequencies, layout):
    return rotate(x, *cos_sin(frequencies, positions), layout)


@LAYOUTS
@HEADS
# cos_sin is off by 3.1e-7 at most up to 10^7, and by 3.6e-6 at the end; x is at most 4.2
@pytest.mark.parametrize(("bound", "error"), [(4096, 2e-6), (10**7, 2e-6), (2**31 - 1, 2e-5)])
@pytest.mark.parametrize("name", FORMS)
def test_models_rotate_as_the_forms_do(name, bound, error, head_dim, layout):
    x = normal(2, 60, 3, head_dim).astype(np.float32)
    positions = positions_to(bound, 2, 60)
    frequencies = parse_scaling({"type": "none"}).frequencies(GEOMETRY)
    found = model_rotation(x, positions.astype(np.int32), frequencies, layout)
    angles = rotation_angles(positions, THETA)[:, :, None]  # the same for all heads
    wanted = FORMS[name](x.astype(np.float64), angles, layout)
    np.testing.assert_allclose(found, wanted, atol=error)
    np.testing.assert_array_equal(found[..., 64:], x[..., 64:])


@LAYOUTS
def test_models_rotate_by_scaled_frequencies_as_the_forms_do(layout):
    x, positions = normal(2, 60, 3, 64).astype(np.float32), positions_to(10**6, 2, 60)
    yarn = parse_scaling({"type": "yarn", "factor": 8.0})
    theta, m = yarn.scaled(GEOMETRY)
    found = model_rotation(x, positions.astype(np.int32), yarn.frequencies(GEOMETRY), layout)
    angles = rotation_angles(positions, theta)[:, :, None]
    wanted = m * rotate_elementwise(x.astype(np.float64), angles, layout)
    np.testing.assert_allclose(found, wanted, atol=2e-6)


# The identities of docs/rope.md, section "Why it works"


@LAYOUTS
def test_scores_depend_on_the_distance_alone(layout):
    q, k = normal(64, seed=1), normal(64, seed=2)
    rng = np.random.default_rng(3)
    for m, n in rng.integers(0, 10**6, (20, 2)):
        score = turned(q, m, layout) @ turned(k, n, layout)
        assert score == pytest.approx(turned(q, m - n, layout) @ k, abs=1e-8)
        assert score == pytest.approx(q @ turned(k, n - m, layout), abs=1e-8)


@LAYOUTS
def test_the_score_is_a_sum_of_cosines_of_the_distance(layout):
    q, k = normal(64, seed=1), normal(64, seed=2)
    first, second = pair_dimensions(32, layout)
    h = (q[first] + 1j * q[second]) * np.conj(k[first] + 1j * k[second])
    for distance in (0, 1, 37, 4095):
        cosines = np.abs(h) * np.cos(distance * THETA + np.angle(h))
        assert turned(q, distance, layout) @ k == pytest.approx(cosines.sum(), abs=1e-10)


@LAYOUTS
def test_norms_are_kept(layout):
    x = normal(100, 64)
    out = turned(x, positions_to(10**6, 100), layout)
    np.testing.assert_allclose(np.linalg.norm(out, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-14)
    matrix = rotation_matrix(12345 * THETA, 64, layout)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(64), atol=1e-15)


@pytest.mark.parametrize("wanted", [0, 7, 500, 4000])
def test_a_score_can_peak_at_any_distance(wanted):
    q = normal(64, seed=4)
    scores = turned(np.broadcast_to(q, (4096, 64)), np.arange(4096)) @ turned(q, wanted)
    assert scores.argmax() == wanted
    assert scores[wanted] == pytest.approx(q @ q, rel=1e-12)


@pytest.mark.parametrize("base", [10.0, 1e4, 5e5])
def test_abels_bound_holds(base):
    # RoFormer, eq. 37: |Σ h_i·e^(jΔθ_i)| <= max |h_(i+1) − h_i| · Σ |S_(i+1)|
    theta = RotaryGeometry(64, base, 64).inv_freq()
    distances = np.arange(4096)
    rotations = np.exp(1j * distances[:, None] * theta)
    partial_sums = np.abs(np.cumsum(rotations, axis=1)).sum(1)
    rng = np.random.default_rng(5)
    for scale in (np.ones(32), 0.9 ** np.arange(32)):
        q, k = rng.standard_normal((2, 32, 2)) @ np.array([1, 1j]) * scale
        for h in (q * np.conj(k), np.abs(q) ** 2, np.ones(32)):
            bound = np.abs(np.diff(h, append=0)).max() * partial_sums
            score = (h * rotations).sum(1)
            assert np.all(np.abs(score) <= bound * (1 + 1e-12))
