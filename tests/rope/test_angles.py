"""Cos and sin of position × frequency, against more precision than they have.

Shapes: L layers, B batch, T length, d rotary dimension.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.rope import Frequencies, RotaryGeometry, cos_sin, parse_scaling

GEOMETRY = RotaryGeometry(64, 1e4, 4096)
SCALINGS = {
    "none": {"type": "none"},
    "pi": {"type": "pi", "factor": 8.0},
    "ntk": {"type": "ntk", "factor": 8.0},
    "yarn": {"type": "yarn", "factor": 8.0},
}


def frequencies_of(name):
    return parse_scaling(SCALINGS[name]).frequencies(GEOMETRY)


def exact_frequencies(name):
    """Float64 made on the host: at position 10^7 they are 1e-9 radians off."""
    inv_freq, m = parse_scaling(SCALINGS[name]).scaled(GEOMETRY)
    return inv_freq.astype(np.longdouble), m


def exact(positions, inv_freq):
    angles = positions[..., None].astype(np.longdouble) * inv_freq
    return np.cos(angles).astype(np.float64), np.sin(angles).astype(np.float64)


def random_positions(bound, count=2000):
    positions = np.random.default_rng(bound).integers(0, bound, count)
    positions[:3] = 0, 1, bound - 1
    return positions.astype(np.int32)


def worst_error(found, wanted):
    return max(np.max(np.abs(np.float64(a) - b)) for a, b in zip(found, wanted, strict=True))


jitted = jax.jit(cos_sin)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("bound", [10**4, 10**6, 10**7])
@pytest.mark.parametrize("name", ["none", "pi", "yarn"])
def test_exact_at_every_position(name, bound, sign):
    positions = sign * random_positions(bound)
    inv_freq, m = exact_frequencies(name)
    found = jitted(frequencies_of(name), positions)
    assert [x.dtype for x in found] == [jnp.float32, jnp.float32]
    assert worst_error((x / np.float32(m) for x in found), exact(positions, inv_freq)) <= 1e-6


def test_exact_to_the_last_position():
    # 3.6e-6 at worst, as documented: the fixed point itself ends here.
    positions = random_positions(2**31 - 1)
    found = jitted(frequencies_of("none"), positions)
    assert worst_error(found, exact(positions, exact_frequencies("none")[0])) <= 4e-6


@pytest.mark.parametrize(
    "geometry", [RotaryGeometry(128, 5e5), RotaryGeometry(32, 1.0), RotaryGeometry(4, 1e8)]
)
def test_exact_at_other_geometries(geometry):
    positions = random_positions(10**7, 500)
    found = jitted(parse_scaling({"type": "none"}).frequencies(geometry), positions)
    exponent = np.arange(0, geometry.rotary_dim, 2, dtype=np.longdouble) / geometry.rotary_dim
    assert worst_error(found, exact(positions, np.longdouble(geometry.base) ** -exponent)) <= 1e-6


def test_angles_are_nearer_than_a_float32_product():
    # What all of this is for: the same angles by the usual product, and without the remainder.
    positions, wanted = random_positions(10**7), exact_frequencies("none")[0]
    frequencies = frequencies_of("none")
    ours = worst_error(jitted(frequencies, positions), exact(positions, wanted))
    angles = positions[:, None].astype(np.float32) * frequencies.inv_freq
    assert angles.dtype == np.float32
    product = worst_error((np.cos(angles), np.sin(angles)), exact(positions, wanted))
    assert ours < 1e-5 * product
    no_remainder = frequencies._replace(inv_freq_remainder=np.zeros(32, np.float32))
    without = worst_error(jitted(no_remainder, positions), exact(positions, wanted))
    assert ours < 1e-4 * without


def test_m_multiplies_cos_and_sin():
    positions = random_positions(10**4)
    yarn = frequencies_of("yarn")
    m = yarn.attention_factor
    assert m == pytest.approx(1.2079441542, rel=1e-6)  # 0.1·ln 8 + 1
    with_m = jitted(yarn, positions)
    without = jitted(yarn._replace(attention_factor=np.float32(1)), positions)
    for a, b in zip(with_m, without, strict=True):
        np.testing.assert_array_equal(a, m * np.asarray(b))


def test_nothing_is_stale_when_frequencies_are_replaced():
    positions = random_positions(10**4)
    for name in ("none", "ntk", "none"):
        wanted = exact(positions, exact_frequencies(name)[0])
        assert worst_error(jitted(frequencies_of(name), positions), wanted) <= 1e-6
    # A new inv_freq with the old remainder: the frequency is their sum.
    mixed = frequencies_of("none")._replace(inv_freq=frequencies_of("ntk").inv_freq)
    total = np.longdouble(mixed.inv_freq) + np.longdouble(mixed.inv_freq_remainder)
    assert worst_error(jitted(mixed, positions), exact(positions, total)) <= 1e-6


def test_a_frequency_that_is_no_number_is_not_taken_for_0():
    for bad in (np.nan, np.inf):
        frequencies = Frequencies.from_float64(np.array([1.0, 0.1]))
        broken = frequencies.with_inv_freq(np.array([1.0, bad], np.float32))
        cos, sin = jitted(broken, np.arange(3, dtype=np.int32))
        assert np.isnan(np.asarray(cos)[:, 1]).all()
        assert np.isnan(np.asarray(sin)[:, 1]).all()


def test_positions_are_whole_and_in_reach():
    frequencies = frequencies_of("none")
    with pytest.raises(ValueError, match=r"^positions: are float32, not integers; to divide pos"):
        jitted(frequencies, np.arange(4, dtype=np.float32) / 2)
    for beyond in (2**31, -(2**31) - 1, 2**32 + 1, 2**63, 2**64, -(10**30)):
        message = rf"^positions: reach {beyond}; the limit is 2\^31 − 1$"
        for positions in ([0, beyond], (beyond,), [[beyond], [0]]):
            with pytest.raises(ValueError, match=message):
                cos_sin(frequencies, positions)
    with pytest.raises(ValueError, match=r"^positions: reach 4294967297; the limit is 2\^31"):
        cos_sin(frequencies, np.array([2**32 + 1]))
    for kind in (np.int64, np.uint8, np.uint32):
        cos, _ = cos_sin(frequencies, np.array([3], kind))
        assert cos[0, 0] == pytest.approx(np.cos(3.0), abs=1e-6)


# Gradients


def finite_differences(function, x, step):
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        offset = np.zeros_like(x)
        offset[index] = step
        gradient[index] = (function(x + offset) - function(x - offset)) / (2 * step)
    return gradient


@pytest.fixture(scope="module")
def weighted_sum():
    """Σ w·cos + u·sin over positions to 3,000, and its float64 twin of (inv_freq, m)."""
    rng = np.random.default_rng(0)
    positions = rng.integers(-3000, 3000, 40).astype(np.int32)
    w, u = rng.standard_normal((2, 40, 32))

    @jax.jit
    def ours(frequencies):
        cos, sin = cos_sin(frequencies, positions)
        return jnp.sum(cos * w.astype(np.float32) + sin * u.astype(np.float32))

    def in_float64(inv_freq, m):
        angles = positions[:, None] * inv_freq
        return np.sum(m * (np.cos(angles) * w + np.sin(angles) * u))

    return ours, in_float64


@pytest.mark.parametrize("name", ["none", "ntk", "yarn"])
def test_gradient_against_finite_differences(name, weighted_sum):
    ours, in_float64 = weighted_sum
    frequencies = frequencies_of(name)
    inv_freq, m = parse_scaling(SCALINGS[name]).scaled(GEOMETRY)
    gradient = jax.grad(ours)(frequencies)
    wanted = finite_differences(lambda x: in_float64(x, m), inv_freq, 1e-7)
    np.testing.assert_allclose(gradient.inv_freq, wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())
    np.testing.assert_array_equal(gradient.inv_freq, gradient.inv_freq_remainder)
    wanted = finite_differences(lambda x: in_float64(inv_freq, x[0]), np.array([m]), 1e-4)
    assert gradient.attention_factor == pytest.approx(wanted[0], rel=1e-4)


def test_forward_derivative_agrees_with_the_gradient(weighted_sum):
    ours, _ = weighted_sum
    frequencies = jax.tree.map(jnp.asarray, frequencies_of("yarn"))
    rng = np.random.default_rng(1)
    direction = jax.tree.map(
        lambda x: jnp.asarray(rng.standard_normal(x.shape), x.dtype), frequencies
    )
    gradient = jax.grad(ours)(frequencies)
    _, forward = jax.jvp(ours, (frequencies,), (direction,))
    backward = sum(jnp.sum(g * d) for g, d in zip(gradient, direction, strict=True))
    assert forward == pytest.approx(float(backward), rel=1e-4)


# Leading axes


def stacked(names):
    return Frequencies(
        *(np.stack(leaves) for leaves in zip(*map(frequencies_of, names), strict=True))
    )


def test_vmap_over_strategies_is_separate_calls():
    names = list(SCALINGS)
    positions = random_positions(10**6, 100)
    together = jax.jit(jax.vmap(cos_sin, in_axes=(0, None)))(stacked(names), positions)
    for index, name in enumerate(names):
        separate = jitted(frequencies_of(name), positions)
        for a, b in zip(together, separate, strict=True):
            np.testing.assert_allclose(a[index], b, atol=2e-7)


def test_layers_and_rows_are_not_mixed_where_there_are_as_many():
    # L = B = 4: frequencies [L, 1, d/2] and [L, 1] against positions [B, T].
    names = list(SCALINGS)
    positions = random_positions(10**6, 4 * 50).reshape(4, 50)
    by_layer = Frequencies(*(leaf[:, None] for leaf in stacked(names)))
    cos, sin = jitted(by_layer, positions)
    assert cos.shape == sin.shape == (4, 4, 50, 32)
    for layer, name in enumerate(names):
        inv_freq, m = exact_frequencies(name)
        wanted = exact(positions, inv_freq)
        found = (x[layer] / np.float32(m) for x in (cos, sin))
        assert worst_error(found, wanted) <= 1e-6, name


def test_leading_axes_align_on_the_right():
    # Frequencies by row, [B, d/2] and [B], against positions [B, T] and against [T].
    names = list(SCALINGS)
    positions = random_positions(10**6, 4 * 50).reshape(4, 50)
    for given in (positions, positions[0]):
        cos, sin = jitted(stacked(names), given)
        assert cos.shape == sin.shape == (4, 50, 32)
        for row, name in enumerate(names):
            inv_freq, m = exact_frequencies(name)
            wanted = exact(given[row] if given.ndim == 2 else given, inv_freq)
            assert worst_error((x[row] / np.float32(m) for x in (cos, sin)), wanted) <= 1e-6, name


def test_frequency_0_turns_nothing():
    zeros = Frequencies.from_float64(np.zeros(32))
    cos, sin = jitted(zeros, random_positions(2**31 - 1))
    assert np.all(np.asarray(cos) == 1)
    assert not np.any(sin)
