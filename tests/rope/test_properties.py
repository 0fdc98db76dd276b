"""Properties of every strategy, at geometries and settings drawn by hypothesis."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rope_jax.rope import STRATEGIES, RotaryGeometry, parse_scaling
from tests.rope.test_strategies import LENGTH_DEPENDENT, SETTINGS, in_float64

settings.register_profile("fast", max_examples=15, deadline=None, derandomize=True)
settings.load_profile("fast")

bases = st.floats(2.0, 1e8)
lengths = st.integers(2, 1_000_000)
dims = st.integers(2, 128).map(lambda half: 2 * half)
geometries = st.tuples(dims, bases, lengths)
factors = st.floats(1.0, 1000.0)


@st.composite
def any_settings(draw, name, pairs):
    """Draw all settings of a strategy, or only the factor of a strategy not listed here."""
    lists = st.lists(st.floats(0.5, 100.0), min_size=pairs, max_size=pairs)
    slow = draw(st.floats(0.05, 8.0))
    ramp = {"beta_slow": st.just(slow), "beta_fast": st.floats(1.5, 50.0).map(lambda x: slow * x)}
    ramp["ramp"] = st.sampled_from(["index", "rotations"])
    own = {
        "dynamic_ntk": {"factor": st.floats(1.0, 8.0)},
        "ntk_by_parts": ramp,
        "yarn": ramp,
        "dynamic_yarn": ramp,
        "longrope": {"short_factor": lists, "long_factor": lists},
        "llama3": {"low_freq_factor": st.just(slow), "high_freq_factor": st.just(3 * slow)},
        "abf": {"base": bases},
        "mixed_base": {"e": st.floats(0.1, 5.0)},
        "p_rope": {"p": st.floats(0, 1)},
        "evq_cosh": {"tau": st.none() | st.floats(0, 1000)},
        "cope": {"c": st.integers(2, pairs), "cut": st.sampled_from(["soft", "hard"])},
        "drope": {"c": st.floats(0, 2)},
        "explicit": {"factors": lists, "attention_factor": st.floats(0.1, 10)},
        "resonance": {"inner": factors.map(lambda factor: {"type": "ntk", "factor": factor})},
        "bucketed": {"factors": st.sets(factors, min_size=1, max_size=4).map(sorted)},
    }.get(name, {})
    if STRATEGIES[name].has_extension_factor():
        own = own | {"factor": factors}
    return {"type": name} | SETTINGS[name] | {key: draw(value) for key, value in own.items()}


def exact(scaling, geometry, length):
    try:
        made = scaling.frequencies(geometry, length)
    except ValueError as error:
        assume("no pair turns between" not in str(error))  # a ramp outside the pairs
        raise
    return in_float64(made), made.attention_factor


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_frequencies_are_finite_not_negative_and_ordered(name, data):
    geometry = RotaryGeometry(*data.draw(geometries))
    scaling = parse_scaling(data.draw(any_settings(name, geometry.rotary_dim // 2)))
    assert type(scaling).model_validate_json(scaling.model_dump_json()) == scaling
    inv_freq, m = exact(scaling, geometry, data.draw(lengths))
    assert inv_freq.shape == (geometry.rotary_dim // 2,)
    assert np.all(np.isfinite(inv_freq))
    assert np.all(inv_freq >= 0)
    assert math.isfinite(m)
    assert m > 0
    if name not in ("longrope", "explicit", "abf", "evq_cosh"):
        # nothing turns faster than without scaling; resonance rounds a wavelength by half a token
        fastest = geometry.inv_freq() * (1 + (0.1 if name == "resonance" else 1e-12))
        assert np.all(inv_freq <= fastest)
    if name not in ("longrope", "explicit", "resonance"):
        assert np.all(np.diff(inv_freq) <= 1e-15)  # slower from pair to pair


@pytest.mark.parametrize("name", sorted(LENGTH_DEPENDENT))
@given(data=st.data())
def test_a_longer_text_turns_no_pair_faster_and_a_short_one_changes_nothing(name, data):
    geometry = RotaryGeometry(*data.draw(geometries))
    scaling = parse_scaling(data.draw(any_settings(name, geometry.rotary_dim // 2)))
    inside = data.draw(st.integers(1, geometry.train_length))
    first, second = (exact(scaling, geometry, n) for n in (inside, geometry.train_length))
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1] == second[1]
    if name != "longrope":
        shorter, longer = sorted(data.draw(st.tuples(lengths, lengths)))
        a, b = (exact(scaling, geometry, n)[0] for n in (shorter, longer))
        assert np.all(b <= a * (1 + 1e-12))
