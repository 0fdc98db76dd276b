"""A strategy with another extension factor: what a sweep uses for `factor: auto`."""

import pytest

from rope_jax.rope import STRATEGIES, parse_scaling

EXTENDING = {
    "pi": {},
    "ntk": {},
    "ntk_by_parts": {"beta_fast": 8.0, "ramp": "rotations"},
    "yarn": {"truncate": False, "query_scale": {"type": "logn"}},
    "longrope": {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]},
    "llama3": {"low_freq_factor": 2.0},
    "mixed_base": {"e": 0.5},
    "p_rope": {"p": 0.5},
    "drope": {"c": 0.4},
}


def test_which_strategies_have_an_extension_factor() -> None:
    found = {name for name, strategy in STRATEGIES.items() if strategy.has_extension_factor()}
    assert found >= set(EXTENDING)
    assert not found & {"none", "dynamic_ntk", "dynamic_pi", "abf", "evq_cosh", "cope", "explicit"}
    assert not found & {"resonance", "bucketed"}


@pytest.mark.parametrize("name", EXTENDING)
def test_with_factor_changes_the_factor_and_nothing_else(name: str) -> None:
    settings = {"type": name, "factor": 2.0} | EXTENDING[name]
    before = parse_scaling(settings)
    after = before.with_factor(8.0)
    assert after == parse_scaling(settings | {"factor": 8.0})
    assert (before.extension_factor, after.extension_factor) == (2.0, 8.0)
    assert type(after) is type(before)


def test_resonance_passes_the_factor_on_to_its_inner_strategy() -> None:
    resonance = parse_scaling({"type": "resonance", "inner": {"type": "yarn", "factor": 2.0}})
    wanted = parse_scaling({"type": "resonance", "inner": {"type": "yarn", "factor": 4.0}})
    assert resonance.with_factor(4.0) == wanted
    assert wanted.extension_factor == 4.0


@pytest.mark.parametrize(
    "settings",
    [
        *({"type": name} for name in ("none", "dynamic_ntk", "dynamic_pi", "abf", "cope")),
        {"type": "explicit", "factors": [1.0, 2.0]},
        {"type": "resonance"},
        {"type": "evq_cosh"},
        {"type": "bucketed", "factors": [1.0, 4.0], "inner": {"type": "yarn"}},
    ],
)
def test_a_strategy_without_an_extension_factor_refuses_one(settings: dict) -> None:
    scaling = parse_scaling(settings)
    assert scaling.extension_factor is None
    name = "none" if scaling.type == "resonance" else scaling.type
    with pytest.raises(ValueError, match=f"^factor: {name} has no extension factor$"):
        scaling.with_factor(4.0)


@pytest.mark.parametrize(
    ("settings", "factor", "message"),
    [
        ({"type": "pi", "factor": 2.0}, 0.5, r"^factor: .*greater than or equal to 1, not 0.5$"),
        ({"type": "ntk", "factor": 2.0}, float("inf"), r"^factor: .*finite number"),
        ({"type": "drope"}, 4.0, "^c: drope needs it for a factor above 1"),
        ({"type": "resonance", "inner": {"type": "drope"}}, 4.0, "^c: drope needs it"),
    ],
)
def test_a_factor_that_does_not_fit_is_refused(settings: dict, factor: float, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_scaling(settings).with_factor(factor)
    assert "\n" not in str(caught.value)
