"""Properties of every strategy, at geometries and settings drawn by hypothesis."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rope_jax.rope import STRATEGIES, RotaryGeometry, parse_scaling
from tests.rope.test_strategies import SETTINGS, scaling

settings.register_profile("fast", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("fast")

dims = st.integers(2, 128).map(lambda half: 2 * half)
bases = st.floats(2.0, 1e8)
lengths = st.integers(2, 1_000_000)
geometries = st.builds(RotaryGeometry, dims, bases, lengths)
factors = st.floats(1.0, 1000.0)


@st.composite
def any_settings(draw, name, pairs):
    """Draw all settings of a strategy, or only the factor of a strategy not listed here."""
    lists = st.lists(st.floats(0.5, 100.0), min_size=pairs, max_size=pairs)
    slow = draw(st.floats(0.05, 8.0))
    by_parts = {"beta_slow": slow, "beta_fast": slow * draw(st.floats(1.5, 50.0))}
    by_parts["ramp"] = draw(st.sampled_from(["index", "rotations"]))
    own = {
        "none": {},
        "pi": {"factor": draw(factors)},
        "ntk": {"factor": draw(factors)},
        "dynamic_ntk": {"factor": draw(st.floats(1.0, 8.0))},
        "dynamic_pi": {},
        "ntk_by_parts": by_parts | {"factor": draw(factors)},
        "yarn": by_parts | {"factor": draw(factors)},
        "dynamic_yarn": by_parts,
        "longrope": {"factor": draw(factors)},
        "llama3": {"factor": draw(factors), "low_freq_factor": slow, "high_freq_factor": 3 * slow},
        "abf": {"base": draw(bases)},
        "mixed_base": {"factor": draw(factors), "e": draw(st.floats(0.1, 5.0))},
        "p_rope": {"p": draw(st.floats(0, 1)), "factor": draw(factors)},
        "evq_cosh": {"tau": draw(st.none() | st.floats(0, 1000))},
        "cope": {
            "c": draw(st.none() | st.integers(2, pairs)),
            "cut": draw(st.sampled_from(["soft", "hard"])),
        },
        "drope": {"factor": draw(factors), "c": draw(st.floats(0, 2))},
        "explicit": {},
        "resonance": {"inner": {"type": "ntk", "factor": draw(factors)}},
        "bucketed": {
            "factors": sorted(draw(st.sets(factors, min_size=1, max_size=4))),
            "inner": draw(st.sampled_from([{"type": "ntk"}, {"type": "yarn"} | by_parts])),
        },
    }
    if name in own:
        own = own[name]
    else:
        factor = {"factor": draw(factors)} if STRATEGIES[name].has_extension_factor() else {}
        own = SETTINGS[name] | factor
    if name == "longrope":
        own |= {"short_factor": draw(lists), "long_factor": draw(lists)}
    if name == "explicit":
        own |= {"factors": draw(lists), "attention_factor": draw(st.floats(0.1, 10))}
    return {"type": name} | own


def drawn(data, name):
    geometry = data.draw(geometries)
    given_ = data.draw(any_settings(name, geometry.rotary_dim // 2))
    return geometry, given_, parse_scaling(given_)


def exact(scaling, geometry, length):
    try:
        made = scaling.frequencies(geometry, length)
    except ValueError as error:
        assume("no pair turns between" not in str(error))  # a ramp outside the pairs
        raise
    return np.float64(made.inv_freq) + np.float64(made.inv_freq_remainder), made.attention_factor


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_frequencies_are_finite_not_negative_and_ordered(name, data):
    geometry, _, scaling = drawn(data, name)
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


@pytest.mark.parametrize("name", STRATEGIES)
@given(data=st.data())
def test_a_dumped_strategy_loads_as_the_same(name, data):
    _, given_, scaling = drawn(data, name)
    assert parse_scaling(scaling.model_dump()) == scaling
    assert type(scaling).model_validate_json(scaling.model_dump_json()) == scaling
    assert scaling.type == given_["type"]


@pytest.mark.parametrize(
    "name", ["dynamic_ntk", "dynamic_pi", "dynamic_yarn", "longrope", "bucketed"]
)
@given(data=st.data())
def test_up_to_the_trained_length_nothing_depends_on_the_length(name, data):
    geometry, _, scaling = drawn(data, name)
    inside = data.draw(st.integers(1, geometry.train_length))
    first, second = (exact(scaling, geometry, n) for n in (inside, geometry.train_length))
    np.testing.assert_array_equal(first[0], second[0])
    assert first[1] == second[1]


@pytest.mark.parametrize("name", ["dynamic_ntk", "dynamic_pi", "dynamic_yarn", "bucketed"])
@given(data=st.data())
def test_a_longer_text_never_turns_a_pair_faster(name, data):
    geometry, _, scaling = drawn(data, name)
    shorter, longer = sorted(data.draw(st.tuples(lengths, lengths)))
    a, b = (exact(scaling, geometry, n)[0] for n in (shorter, longer))
    assert np.all(b <= a * (1 + 1e-12))


@given(geometries, factors)
def test_pi_is_none_at_divided_positions(geometry, factor):
    pi, _ = exact(parse_scaling({"type": "pi", "factor": factor}), geometry, None)
    np.testing.assert_allclose(pi * factor, geometry.inv_freq(), rtol=1e-12)


@given(geometries, factors)
def test_ntk_and_mixed_base_end_on_pi(geometry, factor):
    for name in ("ntk", "mixed_base"):
        made, _ = exact(parse_scaling({"type": name, "factor": factor}), geometry, None)
        assert made[-1] == pytest.approx(geometry.inv_freq()[-1] / factor, rel=1e-9)


@given(geometries, factors, st.data())
def test_by_parts_lies_between_none_and_pi(geometry, factor, data):
    for name in ("ntk_by_parts", "yarn", "llama3"):
        given_ = data.draw(any_settings(name, geometry.rotary_dim // 2)) | {"factor": factor}
        made, _ = exact(parse_scaling(given_), geometry, None)
        ratio = made / geometry.inv_freq()
        assert np.all(ratio <= 1 + 1e-12)
        assert np.all(ratio >= 1 / factor - 1e-12)
        assert np.all(np.diff(ratio) <= 1e-12)


@given(st.floats(1e-3, 0.999) | st.floats(-100, 0) | st.just(math.nan))
def test_no_strategy_accepts_a_factor_below_1(factor):
    for name, strategy in STRATEGIES.items():
        if "factor" in strategy.model_fields:
            with pytest.raises(ValueError, match=r"^factor: "):
                scaling(name, factor, pairs=4)
