"""Strategies that depend on the text's length: traced and on the host, row by row, without state.

Shapes: B batch, d rotary dimension.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry, RotaryLayers, cos_sin, parse_scaling

GEOMETRY = RotaryGeometry(64, 1e4, 2048)
RISING = [float(x) for x in np.linspace(1, 40, 32)]
SCALINGS = {
    "dynamic_ntk": {"type": "dynamic_ntk"},
    "dynamic_ntk a=4": {"type": "dynamic_ntk", "factor": 4.0},
    "dynamic_ntk a=1.3": {"type": "dynamic_ntk", "factor": 1.3},
    "dynamic_pi": {"type": "dynamic_pi"},
    "dynamic_yarn": {"type": "dynamic_yarn"},
    "dynamic_yarn, the paper's ramp": {"type": "dynamic_yarn", "ramp": "rotations"},
    "dynamic_yarn, m given": {"type": "dynamic_yarn", "attention_factor": 1.1},
    "longrope": {
        "type": "longrope",
        "short_factor": RISING,
        "long_factor": [2 * x for x in RISING],
        "factor": 32.0,
    },
    "bucketed": {"type": "bucketed", "factors": [1, 2.5, 4, 16], "inner": {"type": "yarn"}},
    "bucketed over longrope": {
        "type": "bucketed",
        "factors": [1, 4],
        "inner": {
            "type": "longrope",
            "short_factor": RISING,
            "long_factor": [2 * x for x in RISING],
        },
    },
}
jitted = jax.jit(cos_sin)
EVERY = pytest.mark.parametrize("name", SCALINGS)


def many_lengths():
    rng = np.random.default_rng(0)
    drawn = [rng.integers(1, bound, 400) for bound in (5000, 10**6, 2**31 - 1)]
    edges = [1, 2047, 2048, 2049, 2**24 + 1, 2**31 - 1]
    return np.concatenate([*drawn, edges]).astype(np.int32)


def in_float64(frequencies):
    return np.float64(frequencies.inv_freq) + np.float64(frequencies.inv_freq_remainder)


@EVERY
@pytest.mark.parametrize(
    "geometry", [GEOMETRY, RotaryGeometry(64, 5e5, 8192), RotaryGeometry(64, 1e4, 100)]
)
def test_traced_frequencies_match_those_of_the_host(name, geometry):
    made, lengths = parse_scaling(SCALINGS[name]), many_lengths()
    exact = made.frequencies(geometry, lengths)
    traced = jax.jit(lambda n: made.frequencies(geometry, n))(lengths)
    wanted = in_float64(exact)
    assert wanted.shape == traced.inv_freq.shape == (len(lengths), 32)
    assert traced.inv_freq.dtype == traced.attention_factor.dtype == jnp.float32
    assert np.max(np.abs(in_float64(traced) - wanted) / wanted) <= 5e-7  # the worst seen: 2.9e-7
    np.testing.assert_allclose(traced.attention_factor, exact.attention_factor, rtol=3e-7)


@functools.cache
def traced_angles(name):
    """Return a function, compiled once, from (length, positions) to frequencies, cos and sin."""
    made = parse_scaling(SCALINGS[name])

    @jax.jit
    def angles(length, positions):
        frequencies = made.frequencies(GEOMETRY, length)
        return frequencies, *cos_sin(frequencies, positions)

    return angles


@EVERY
@pytest.mark.parametrize("bound", [10**4, 10**6, 10**7])
def test_angles_of_traced_frequencies_are_exact(name, bound):
    positions = np.random.default_rng(bound).integers(0, bound, 1000).astype(np.int32)
    positions[-1] = bound - 1
    frequencies, cos, sin = traced_angles(name)(jnp.int32(bound), positions)
    angles = positions[:, None] * np.asarray(frequencies.inv_freq).astype(np.longdouble)
    m = np.float64(frequencies.attention_factor)
    for found, wanted in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        assert np.max(np.abs(np.float64(found) / m - np.float64(wanted))) <= 1e-6


def test_traced_frequencies_are_closer_than_a_plain_power_in_float32():
    # Why `falling_power` exists: the usual exp(−e·ln s) has three times its error.
    made = parse_scaling(SCALINGS["dynamic_ntk"])
    lengths = many_lengths()
    wanted = in_float64(made.frequencies(GEOMETRY, lengths))
    s = np.maximum(1, lengths.astype(np.float32) / np.float32(2048))
    exponents = (np.arange(0, 64, 2) / 62).astype(np.float32)
    theta = GEOMETRY.inv_freq().astype(np.float32)
    plain = np.float64(theta * np.asarray(jnp.exp(-exponents[None] * jnp.log(s)[:, None])))
    traced = in_float64(jax.jit(lambda n: made.frequencies(GEOMETRY, n))(lengths))
    ours, theirs = (np.max(np.abs(found - wanted) / wanted) for found in (traced, plain))
    assert 3 * ours < theirs


@EVERY
def test_no_recompilation_over_lengths(name):
    made = parse_scaling(SCALINGS[name])
    traces = []

    @jax.jit
    def angles(positions, length):
        traces.append(1)
        return cos_sin(made.frequencies(GEOMETRY, length), positions)

    positions = np.arange(64, dtype=np.int32)
    found = [angles(positions, jnp.int32(n)) for n in (64, 2048, 2049, 5000, 10**6)]
    assert len(traces) == 1
    for length, one in zip((64, 2048, 2049, 5000, 10**6), found, strict=True):
        wanted = jitted(made.frequencies(GEOMETRY, length), positions)
        for a, b in zip(one, wanted, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)  # 63 positions × 3e-7


@EVERY
def test_rows_do_not_affect_each_other(name):
    # A known bug elsewhere: every row of a batch gets the longest row's base.
    made = parse_scaling(SCALINGS[name])
    batch = jax.jit(lambda n: made.frequencies(GEOMETRY, n))
    rows = np.array([100, 2048, 4096, 10**6], np.int32)
    together = batch(rows)
    alone = [batch(rows[i : i + 1]) for i in range(4)]
    others = batch(np.array([100, 7, 4096, 3], np.int32))
    for leaf, *singles in zip(together, *alone, strict=True):
        np.testing.assert_array_equal(leaf, np.concatenate(singles))
    for leaf, other in zip(together, others, strict=True):
        np.testing.assert_array_equal(leaf[0], other[0])
        np.testing.assert_array_equal(leaf[2], other[2])
    assert not np.array_equal(together.inv_freq[2], together.inv_freq[3]) or "longrope" in name


@EVERY
def test_a_long_text_does_not_change_later_short_ones(name):
    made = parse_scaling(SCALINGS[name])
    before = made.frequencies(GEOMETRY, 1000)
    made.frequencies(GEOMETRY, 10**6)
    for a, b in zip(before, made.frequencies(GEOMETRY, 1000), strict=True):
        np.testing.assert_array_equal(a, b)
    if "longrope" not in name:
        plain = parse_scaling({"type": "none"}).frequencies(GEOMETRY)
        np.testing.assert_allclose(in_float64(before), in_float64(plain), rtol=1e-15)


@EVERY
def test_a_length_may_have_any_integer_type(name):
    made = parse_scaling(SCALINGS[name])
    for length in (5, 2048, 9000):
        wanted = made.frequencies(GEOMETRY, length).inv_freq
        for kind in (np.int16, np.uint16, np.uint32, np.int64):
            found = made.frequencies(GEOMETRY, kind(length)).inv_freq
            np.testing.assert_array_equal(found, wanted)
        for kind in (jnp.int16, jnp.uint32):
            traced = made.frequencies(GEOMETRY, jnp.asarray(length, kind)).inv_freq
            np.testing.assert_allclose(traced, wanted, rtol=5e-7)


@EVERY
def test_lengths_in_host_arrays_are_independent_too(name):
    made = parse_scaling(SCALINGS[name])
    rows = made.frequencies(GEOMETRY, np.array([[10, 5000], [2049, 10**6]]))
    assert rows.inv_freq.shape == (2, 2, 32)
    assert rows.attention_factor.shape == (2, 2)
    for leaf, one in zip(rows, made.frequencies(GEOMETRY, 10**6), strict=True):
        np.testing.assert_array_equal(leaf[1, 1], one)


def test_a_batch_of_lengths_rotates_each_row_by_its_own():
    made = parse_scaling(SCALINGS["dynamic_ntk"])
    positions = np.arange(50, dtype=np.int32)[None]
    rotary = jax.jit(RotaryLayers(GEOMETRY, 2).rotary, static_argnums=0)(
        made, positions, jnp.asarray([50, 8192])
    )
    assert [leaf.shape[:2] for leaf in rotary.frequencies] == [(1, 2)] * 3
    cos, _ = jitted(rotary.frequencies, positions)
    assert cos.shape == (1, 2, 50, 32)
    for row, length in enumerate((50, 8192)):
        wanted, _ = jitted(made.frequencies(GEOMETRY, length), positions[0])
        np.testing.assert_allclose(cos[0, row], wanted, atol=2e-5)


def test_resonance_rounds_the_wavelengths_of_a_dynamic_scaling():
    made = parse_scaling({"type": "resonance", "inner": {"type": "dynamic_yarn"}})
    assert made.length_dependent
    lengths = np.arange(1, 20000, 37, dtype=np.int32)
    wavelengths = 2 * np.pi / in_float64(made.frequencies(GEOMETRY, lengths))
    np.testing.assert_allclose(wavelengths, np.round(wavelengths), rtol=1e-12)
    traced = 2 * np.pi / in_float64(jax.jit(lambda n: made.frequencies(GEOMETRY, n))(lengths))
    off = np.abs(traced - wavelengths)
    # float32 may round a wavelength halfway between two to the other one, as documented
    assert np.mean(off > 0.5) < 0.02
    assert off.max() < 1.1


def test_gradients_flow_through_dynamic_frequencies():
    made = parse_scaling(SCALINGS["dynamic_yarn"])
    positions = np.arange(30, dtype=np.int32)

    @jax.jit
    def score(scale):
        frequencies = made.frequencies(GEOMETRY, jnp.int32(8192))
        cos, _ = cos_sin(frequencies._replace(inv_freq=frequencies.inv_freq * scale), positions)
        return cos.sum()

    slope = (score(1.001) - score(0.999)) / 0.002
    assert jax.grad(score)(1.0) == pytest.approx(float(slope), rel=1e-2)


@pytest.mark.parametrize("train_length", [100, 2048, 2**29])
def test_traced_lengths_fall_into_the_same_buckets_as_those_of_the_host(train_length):
    # 16·2^29 and 1e300·L are more than 32 bits hold: every length is covered
    factors = [1.0, 1.15, 3.5, 16.0, 1e300]
    made = parse_scaling({"type": "bucketed", "factors": factors, "inner": {"type": "pi"}})
    geometry = RotaryGeometry(4, 100.0, train_length)
    lengths, wanted = [1, 2**31 - 1], [1.0, 16.0 if train_length == 2**29 else 1e300]
    for factor, larger in itertools.pairwise(factors[:4]):
        longest = math.floor(factor * train_length + 1e-6)
        lengths += [longest, longest + 1]
        wanted += [factor, larger]
    lengths = np.array(lengths, np.int32)
    for made_by in (made.frequencies, jax.jit(made.frequencies, static_argnums=0)):
        found = made_by(geometry, lengths).inv_freq
        np.testing.assert_array_equal(found, np.float32([1.0, 0.1] / np.array(wanted)[:, None]))
