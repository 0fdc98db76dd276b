"""Errors of strategies and geometries: one line that begins with the field."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from rope_jax.config.messages import explain
from rope_jax.rope import STRATEGIES, AnyScaling, RotaryGeometry, parse_scaling
from tests.rope.test_strategies import LENGTH_DEPENDENT, SETTINGS, scaling

TYPES = ", ".join(STRATEGIES)
CASES = yaml.safe_load(Path(__file__).with_name("bad_settings.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("settings", "message"), CASES["settings"])
def test_bad_settings_name_the_field(settings, message):
    """In the words of a config's errors, and in those of the library, which gives no hints."""
    as_mapping = {"type": settings} if isinstance(settings, str) else settings
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(AnyScaling).validate_python(as_mapping)
    explained = explain(refused.value, as_mapping, *STRATEGIES.values())
    assert re.search(message.replace("TYPES", TYPES), explained)
    key = re.match(r"\w+", explained)[0]
    with pytest.raises(ValueError, match=rf"^{key}\b.* ") as caught:
        parse_scaling(settings)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("wrong_types")
def test_settings_that_are_neither_a_mapping_nor_a_name_are_refused():
    for settings in (4, None, ["yarn"]):
        with pytest.raises(ValueError, match=r"^scaling: should be the name of a scaling or a map"):
            parse_scaling(settings)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("rotary_dim", (3, 0, -2, 8.0, "8", None)),
        ("base", (math.nan, math.inf, 0.5, True, "x")),
        ("train_length", (0, math.nan, 10.5, True)),
    ],
)
def test_bad_geometry_names_the_field(field, values):
    for value in values:
        with pytest.raises(ValueError, match=f"^{field}: {value!r} is not"):
            RotaryGeometry(**{"rotary_dim": 64, field: value})


@pytest.mark.parametrize(("settings", "message"), CASES["geometry"])
def test_settings_that_do_not_fit_the_geometry_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        parse_scaling(settings).check(RotaryGeometry(64, 1e4, 2048), 100, head_dim=128)


def test_geometries_without_a_formula_are_refused():
    with pytest.raises(ValueError, match=r"^base: yarn needs a base above 1"):
        scaling("yarn").frequencies(RotaryGeometry(64, 1.0, 128))
    with pytest.raises(ValueError, match=r"^rotary_dim: ntk needs at least 4, not 2"):
        scaling("ntk").frequencies(RotaryGeometry(2))
    for name in SETTINGS:
        scaling(name, pairs=32).check(RotaryGeometry(64, 1e4, 4096), 10**5)


@pytest.mark.parametrize("name", sorted(LENGTH_DEPENDENT))
def test_a_strategy_that_needs_a_length_says_so(name):
    made = scaling(name, pairs=32)
    with pytest.raises(ValueError, match=f"^seq_len: {name} depends on the text's length; give it"):
        made.frequencies(RotaryGeometry(64))
    for wrong in (0, -1, 8192.0, np.float32(8192), [5, 0], np.array([1.5])):
        with pytest.raises(ValueError, match=r"^seq_len: .* is not a whole number of at least 1"):
            made.frequencies(RotaryGeometry(64), wrong)
