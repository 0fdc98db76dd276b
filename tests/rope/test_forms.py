"""`rotate` and `cos_sin` against the rotation as a complex product and as a matrix.

The identities are those that docs/rope.md proves. Shapes: B batch, T length, N heads, d rotary
dimension.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling, rotate
from tests.rope.forms import pair_dimensions, rotate_complex, rotation_matrix

GEOMETRY = RotaryGeometry(64, 1e4, 4096)
THETA = GEOMETRY.inv_freq()
LAYOUTS = pytest.mark.parametrize("layout", ["half", "interleaved"])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def positions_to(bound, *shape):
    positions = np.random.default_rng(bound).integers(0, bound, shape)
    positions.flat[:3] = 0, 1, bound - 1
    return positions


def turned(x, positions, layout="half"):
    """Rotate x [..., 64] by the unscaled angles at positions [...]."""
    return rotate_complex(x, np.asarray(positions)[..., None] * THETA, layout)


def test_rotation_by_hand():
    # d 4: a quarter turn of the first pair, an eighth of the second; the fifth dimension stays
    angles, h = np.array([[np.pi / 2, np.pi / 4]]), np.sqrt(0.5)
    x = np.array([[[1.0, 2.0, 3.0, 4.0, 5.0]]], np.float32)
    by_hand = {
        "half": [-3, 2 * h - 4 * h, 1, 4 * h + 2 * h, 5],  # pairs (1, 3) and (2, 4)
        "interleaved": [-2, 1, 3 * h - 4 * h, 4 * h + 3 * h, 5],  # pairs (1, 2) and (3, 4)
    }
    for layout, wanted in by_hand.items():
        turned = rotate(
            x, np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32), layout
        )
        np.testing.assert_allclose(turned[0, 0], wanted, atol=1e-6)
        np.testing.assert_allclose(rotate_complex(x[0, 0], angles[0], layout), wanted, atol=1e-6)


@LAYOUTS
def test_the_matrix_is_the_exponential_of_its_generator(layout):
    # R_p = exp(p·G) with G skew-symmetric, which has R_m·R_n = R_(m+n) as a consequence
    first, second = pair_dimensions(32, layout)
    generator = np.zeros((64, 64))
    generator[second, first], generator[first, second] = THETA, -THETA
    for position in (1, 37):
        matrix = rotation_matrix(position * THETA, layout)
        np.testing.assert_allclose(matrix, expm(position * generator), atol=1e-12)
    # in the layout "interleaved" it has a block for each pair
    blocks = matrix.reshape(32, 2, 32, 2).swapaxes(1, 2)
    assert blocks[~np.eye(32, dtype=bool)].any() == (layout == "half")


# The models' rotation against the forms


@partial(jax.jit, static_argnames="layout")
def model_rotation(x, positions, frequencies, layout):
    return rotate(x, *cos_sin(frequencies, positions), layout)


@LAYOUTS
def test_models_rotate_as_the_forms_do(layout):
    x = normal(2, 60, 3, 80).astype(np.float32)
    # cos_sin is off by 3.1e-7 at most up to 10^7, and by 3.6e-6 at the end; x is at most 4.2
    for settings, bound, error in (
        ({"type": "none"}, 4096, 2e-6),
        ({"type": "none"}, 2**31 - 1, 2e-5),
        ({"type": "yarn", "factor": 8.0}, 10**7, 2e-6),
    ):
        scaling, positions = parse_scaling(settings), positions_to(bound, 2, 60)
        theta, m = scaling.scaled(GEOMETRY)
        frequencies = scaling.frequencies(GEOMETRY)
        found = model_rotation(x, positions.astype(np.int32), frequencies, layout)
        angles = (positions[..., None] * theta)[:, :, None]  # the same for all heads
        wanted = m * rotate_complex(x[..., :64].astype(np.float64), angles, layout)
        np.testing.assert_allclose(found[..., :64], wanted, atol=error)
        # m, too, acts on the rotated dimensions alone
        np.testing.assert_array_equal(found[..., 64:], x[..., 64:])


@LAYOUTS
def test_bfloat16_is_rounded_once_at_the_end(layout):
    x, positions = normal(2, 60, 3, 80).astype(jnp.bfloat16), positions_to(1000, 2, 60)
    frequencies = parse_scaling("none").frequencies(GEOMETRY)
    found = model_rotation(x, positions.astype(np.int32), frequencies, layout)
    assert found.dtype == jnp.bfloat16
    exact = model_rotation(x.astype(np.float32), positions.astype(np.int32), frequencies, layout)
    np.testing.assert_array_equal(found, np.asarray(exact).astype(jnp.bfloat16))


def test_layouts_agree_after_permuting_the_projection():
    width, positions = 24, positions_to(1000, 2, 60).astype(np.int32)
    x, weight = np.float32(normal(2, 60, width)), np.float32(normal(3 * 64, width, seed=1) / 5)
    frequencies = parse_scaling("none").frequencies(GEOMETRY)
    # Rows of a head: (0, 1), (2, 3), … to evens first, then odds, as for HF's checkpoints.
    permuted = weight.reshape(3, 32, 2, width).swapaxes(1, 2).reshape(3 * 64, width)

    def scores(weight, layout):
        q = model_rotation((x @ weight.T).reshape(2, 60, 3, 64), positions, frequencies, layout)
        return np.einsum("bsnd,btnd->bnst", q, q)

    interleaved = scores(weight, "interleaved")
    np.testing.assert_allclose(scores(permuted, "half"), interleaved, rtol=1e-4, atol=1e-3)
    # those of one projection under both layouts do not
    assert np.max(np.abs(scores(weight, "half") - interleaved)) > 1


@pytest.mark.usefixtures("wrong_types")
def test_a_head_narrower_than_the_rotation_and_an_unknown_layout_are_refused():
    message = r"^x: has heads of 8 dimensions, fewer than the 16 to rotate"
    cos = np.ones((2, 12, 8), np.float32)
    with pytest.raises(ValueError, match=message):
        rotate(np.ones((2, 12, 3, 8), np.float32), cos, cos)
    with pytest.raises(ValueError, match=r"^layout: 'neox' is neither"):
        rotate(np.ones((2, 12, 3, 16), np.float32), cos, cos, "neox")


# The identities of docs/rope.md, section "Why it works"


@LAYOUTS
def test_scores_depend_on_the_distance_alone_as_a_sum_of_cosines(layout):
    q, k = normal(64, seed=1), normal(64, seed=2)
    first, second = pair_dimensions(32, layout)
    h = (q[first] + 1j * q[second]) * np.conj(k[first] + 1j * k[second])
    for m, n in np.random.default_rng(3).integers(0, 10**6, (20, 2)):
        score = turned(q, m, layout) @ turned(k, n, layout)
        cosines = np.abs(h) * np.cos((m - n) * THETA + np.angle(h))
        assert score == pytest.approx(cosines.sum(), abs=1e-8)
    # |q_m|² = |q|²: norms are kept
    assert np.linalg.norm(turned(q, 12345, layout)) == pytest.approx(np.linalg.norm(q), rel=1e-14)
