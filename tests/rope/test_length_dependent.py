"""Strategies that depend on the text's length: traced as on the host, and row by row."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry, parse_scaling
from tests.rope.test_strategies import in_float64

# exact as users compile it
pytestmark = pytest.mark.usefixtures("compiled_fully")

GEOMETRY = RotaryGeometry(64, 1e4, 2048)
RISING = np.linspace(1, 40, 32)
LISTS = {"short_factor": RISING.tolist(), "long_factor": (2 * RISING).tolist()}
SCALINGS = {
    "dynamic_ntk": {"type": "dynamic_ntk"},
    "dynamic_ntk a=4": {"type": "dynamic_ntk", "factor": 4.0},
    "dynamic_pi": {"type": "dynamic_pi"},
    "dynamic_yarn": {"type": "dynamic_yarn"},
    "longrope": {"type": "longrope", "factor": 32.0} | LISTS,
    "bucketed over longrope": {
        "type": "bucketed",
        "factors": [1, 4],
        "inner": {"type": "longrope"} | LISTS,
    },
}


@pytest.mark.parametrize("name", SCALINGS)
def test_traced_frequencies_match_those_of_the_host_row_by_row(name):
    made, rng = parse_scaling(SCALINGS[name]), np.random.default_rng(0)
    edges = [1, 2047, 2048, 2049, 2**24 + 1, 2**31 - 1]
    drawn = [rng.integers(1, bound, 400) for bound in (5000, 10**6, 2**31 - 1)]
    lengths = np.concatenate([edges, *drawn]).astype(np.int32)
    exact = made.frequencies(GEOMETRY, lengths)
    traced = jax.jit(made.frequencies, static_argnums=0)(GEOMETRY, lengths)
    wanted = in_float64(exact)
    assert wanted.shape == traced.inv_freq.shape == (len(lengths), 32)
    assert traced.inv_freq.dtype == traced.attention_factor.dtype == jnp.float32
    # the worst seen is 2.9e-7; exp(−e·ln s), instead of `falling_power`, has three times as much
    assert np.max(np.abs(in_float64(traced) - wanted) / wanted) <= 5e-7
    np.testing.assert_allclose(traced.attention_factor, exact.attention_factor, rtol=3e-7)
    # a known bug elsewhere: every row of a batch gets the longest row's base
    for row, length in enumerate(edges):
        for leaf, alone in zip(exact, made.frequencies(GEOMETRY, length), strict=True):
            np.testing.assert_array_equal(leaf[row], alone)


def test_a_length_may_have_any_integer_type():
    made = parse_scaling(SCALINGS["dynamic_pi"])
    for length in (5, 9000):
        wanted = made.frequencies(GEOMETRY, length).inv_freq
        for kind in (np.int16, np.uint16, np.uint32, np.int64):  # unsigned, n − L may wrap around
            found = made.frequencies(GEOMETRY, kind(length)).inv_freq
            np.testing.assert_array_equal(found, wanted)
        traced = made.frequencies(GEOMETRY, jnp.asarray(length, jnp.uint32)).inv_freq
        np.testing.assert_allclose(traced, wanted, rtol=5e-7)


def test_resonance_rounds_the_wavelengths_of_a_dynamic_scaling():
    made = parse_scaling({"type": "resonance", "inner": {"type": "dynamic_yarn"}})
    assert made.length_dependent
    lengths = np.arange(1, 20000, 37, dtype=np.int32)
    wavelengths = 2 * np.pi / in_float64(made.frequencies(GEOMETRY, lengths))
    np.testing.assert_allclose(wavelengths, np.round(wavelengths), rtol=1e-12)
    traced = jax.jit(made.frequencies, static_argnums=0)(GEOMETRY, lengths)
    off = np.abs(2 * np.pi / in_float64(traced) - wavelengths)
    # float32 may round a wavelength halfway between two to the other one, as documented
    assert np.mean(off > 0.5) < 0.02
    assert off.max() < 1.1


@pytest.mark.parametrize("train_length", [100, 2**29])
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
