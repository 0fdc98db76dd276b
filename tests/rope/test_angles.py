"""Cos and sin of position × frequency, compared with values of higher precision.

Shapes: L layers, B batch, T length, d rotary dimension.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.rope import Frequencies, RotaryGeometry, cos_sin, parse_scaling

# exact as users compile it
pytestmark = pytest.mark.usefixtures("compiled_fully")

GEOMETRY = RotaryGeometry(64, 1e4, 4096)
SCALINGS = {
    "none": {"type": "none"},
    "pi": {"type": "pi", "factor": 8.0},
    "ntk": {"type": "ntk", "factor": 8.0},
    "yarn": {"type": "yarn", "factor": 8.0},
}


def frequencies_of(name):
    return parse_scaling(SCALINGS[name]).frequencies(GEOMETRY)


def exact(positions, name):
    """Return m·cos and m·sin, and m; at position 10^7 the angles are 1e-9 radians off."""
    inv_freq, m = parse_scaling(SCALINGS[name]).scaled(GEOMETRY)
    return of_angles(positions, inv_freq, m)


def of_angles(positions, inv_freq, m=1.0):
    angles = positions[..., None].astype(np.longdouble) * np.longdouble(inv_freq)
    return m * np.float64(np.cos(angles)), m * np.float64(np.sin(angles))


def random_positions(bound, count=2000):
    positions = np.random.default_rng(bound).integers(0, bound, count)
    positions[:3] = 0, 1, bound - 1
    return positions.astype(np.int32)


def worst_error(found, wanted):
    return max(np.max(np.abs(np.float64(a) - b)) for a, b in zip(found, wanted, strict=True))


jitted = jax.jit(cos_sin)


@pytest.mark.parametrize("name", ["none", "pi", "yarn"])
def test_angles_are_exact_at_every_position(name):
    # 3.6e-6 at worst up to the last position, as documented: the precision of fixed point ends here
    for bound, error in ((10**4, 4e-7), (10**7, 4e-7), (2**31 - 1, 5e-6)):
        for sign in (1, -1):
            positions = sign * random_positions(bound)
            found = jitted(frequencies_of(name), positions)
            assert [x.dtype for x in found] == [jnp.float32, jnp.float32]
            assert worst_error(found, exact(positions, name)) <= error


@pytest.mark.parametrize("geometry", [RotaryGeometry(64, 5e5), RotaryGeometry(64, 1.0)])
def test_angles_are_exact_for_other_bases(geometry):
    positions = random_positions(10**7)
    found = jitted(parse_scaling("none").frequencies(geometry), positions)
    theta = np.longdouble(geometry.base) ** (-np.arange(0, 64, 2, dtype=np.longdouble) / 64)
    assert worst_error(found, of_angles(positions, theta)) <= 1e-6


def test_a_frequency_is_the_sum_of_its_two_parts():
    positions = random_positions(10**4)
    mixed = frequencies_of("none")._replace(inv_freq=frequencies_of("ntk").inv_freq)
    total = np.longdouble(mixed.inv_freq) + np.longdouble(mixed.inv_freq_remainder)
    assert worst_error(jitted(mixed, positions), of_angles(positions, total)) <= 1e-6


def test_frequencies_that_are_0_or_not_finite():
    positions, still = random_positions(2**31 - 1), Frequencies.from_float64(np.zeros(32))
    cos, sin = map(np.asarray, jitted(still, positions))
    assert (cos == 1).all()
    assert (sin == 0).all()
    for bad in (np.nan, np.inf):
        broken = still.with_inv_freq(np.float32([0, bad, *[0] * 30]))
        assert np.isnan([x[:, 1] for x in jitted(broken, positions)]).all()


def test_positions_must_be_integers_within_int32():
    frequencies = frequencies_of("none")
    with pytest.raises(ValueError, match=r"^positions: are float32, not integers; to divide them"):
        jitted(frequencies, np.arange(4, dtype=np.float32) / 2)
    for beyond in (2**31, -(2**31) - 1, 2**32 + 1):
        message = rf"^positions: reach {beyond}; the limit is 2\^31 − 1$"
        for positions in ([0, beyond], [[beyond], [0]], np.array([beyond])):
            with pytest.raises(ValueError, match=message):
                cos_sin(frequencies, positions)


def test_derivatives_match_finite_differences():
    """Of Σ w·cos + u·sin over positions up to 3,000, in float64."""
    rng = np.random.default_rng(0)
    positions = rng.integers(-3000, 3000, 40).astype(np.int32)
    w, u = rng.standard_normal((2, 40, 32))

    def ours(frequencies):
        cos, sin = cos_sin(frequencies, positions)
        return jnp.sum(cos * w.astype(np.float32) + sin * u.astype(np.float32))

    def in_float64(inv_freq, m):
        cos, sin = of_angles(positions, inv_freq, m)
        return np.sum(cos * w + sin * u)

    @jax.jit
    def derivatives(frequencies, direction):
        return jax.grad(ours)(frequencies), jax.jvp(ours, (frequencies,), (direction,))[1]

    for name in ("ntk", "yarn"):
        frequencies = frequencies_of(name)
        direction = jax.tree.map(lambda x: np.float32(rng.standard_normal(x.shape)), frequencies)
        gradient, forward = derivatives(frequencies, direction)
        inv_freq, m = parse_scaling(SCALINGS[name]).scaled(GEOMETRY)
        steps = 1e-7 * np.eye(32)
        wanted = [(in_float64(inv_freq + s, m) - in_float64(inv_freq - s, m)) / 2e-7 for s in steps]
        np.testing.assert_allclose(
            gradient.inv_freq, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max()
        )
        np.testing.assert_array_equal(gradient.inv_freq, gradient.inv_freq_remainder)
        assert gradient.attention_factor == pytest.approx(in_float64(inv_freq, 1.0), rel=1e-4)
        backward = sum(np.sum(g * d) for g, d in zip(gradient, direction, strict=True))
        assert forward == pytest.approx(float(backward), rel=1e-4)


def test_leading_axes_align_on_the_right():
    """Layers and rows are not mixed, though both are 4: [L, 1, d/2] and [B, d/2] against [B, T]."""
    names = list(SCALINGS)
    stacked = [np.stack(leaves) for leaves in zip(*map(frequencies_of, names), strict=True)]
    positions = random_positions(10**6, 4 * 50).reshape(4, 50)
    wanted = [np.stack(x) for x in zip(*(exact(positions, name) for name in names), strict=True)]
    by_layer = jitted(Frequencies(*(leaf[:, None] for leaf in stacked)), positions)
    assert by_layer[0].shape == by_layer[1].shape == (4, 4, 50, 32)
    assert worst_error(by_layer, wanted) <= 1e-6
    rows = np.arange(4)
    for given, of_rows in ((positions, rows), (positions[0], 0)):
        by_row = jitted(Frequencies(*stacked), given)
        assert by_row[0].shape == (4, 50, 32)
        assert worst_error(by_row, [x[rows, of_rows] for x in wanted]) <= 1e-6
