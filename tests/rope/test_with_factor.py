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
OTHERS = {
    "none": {},
    "dynamic_ntk": {},
    "dynamic_yarn": {},
    "abf": {},
    "evq_cosh": {},
    "explicit": {"factors": [1.0, 2.0]},
    "resonance": {},
    "bucketed": {"factors": [1.0, 4.0], "inner": {"type": "yarn"}},
}


@pytest.mark.parametrize("name", EXTENDING)
def test_with_factor_changes_the_factor_and_nothing_else(name: str) -> None:
    assert STRATEGIES[name].has_extension_factor()
    settings = {"type": name, "factor": 2.0} | EXTENDING[name]
    before = parse_scaling(settings)
    after = before.with_factor(8.0)
    assert after == parse_scaling(settings | {"factor": 8.0})
    assert (before.extension_factor, after.extension_factor) == (2.0, 8.0)
    if "query_scale" not in settings:
        over = parse_scaling({"type": "resonance", "inner": settings}).with_factor(8.0)
        assert over == parse_scaling({"type": "resonance", "inner": settings | {"factor": 8.0}})
        assert over.extension_factor == 8.0


@pytest.mark.parametrize("name", OTHERS)
def test_a_strategy_without_an_extension_factor_refuses_one(name: str) -> None:
    assert not STRATEGIES[name].has_extension_factor()
    scaling = parse_scaling({"type": name} | OTHERS[name])
    assert scaling.extension_factor is None
    name = "none" if name == "resonance" else name
    with pytest.raises(ValueError, match=f"^factor: {name} has no extension factor$"):
        scaling.with_factor(4.0)


def test_a_factor_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^factor: .*greater than or equal to 1, not 0.5$"):
        parse_scaling({"type": "pi", "factor": 2.0}).with_factor(0.5)
    with pytest.raises(ValueError, match=r"^c: drope needs it for a factor above 1"):
        parse_scaling("drope").with_factor(4.0)
