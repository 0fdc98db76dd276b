"""The entries of a sweep: how they are written, named, and made into scalings."""

import json
import re

import numpy as np
import pytest

from rope_jax.config.entries import SweepEntry
from rope_jax.config.sweep import SweepConfig
from rope_jax.rope import (
    STRATEGIES,
    RotaryGeometry,
    parse_scaling,
)
from rope_jax.rope.strategies import (
    NoScaling,
    NTKScaling,
    PIScaling,
    ResonanceScaling,
    YaRNScaling,
)
from tests.config.examples import EXTENDING, TYPES, example


def entries(read, text, *overrides):
    return read(f"scalings: {text}", *overrides, schema=SweepConfig).scalings


def test_labels_are_made_of_type_and_factor_unless_named(read):
    made = entries(
        read,
        "[trained, none, {type: pi, factor: auto}, {type: pi, factor: 4}, "
        "{type: ntk, factor: 2.5}, {type: yarn, factor: 1.0e+6}, "
        "{type: yarn, factor: 4, beta_fast: 64, name: fast}, {type: abf}, "
        "{type: resonance, inner: {type: pi, factor: 3}}, {type: resonance}, "
        "{type: bucketed, factors: [1, 4, 16], inner: {type: yarn}}, "
        "{type: bucketed, factors: [2.5], inner: {type: yarn}, name: one}, evq_cosh]",
    )
    assert [entry.label for entry in made] == [
        "trained",
        "none",
        "pi-auto",
        "pi-4",
        "ntk-2.5",
        "yarn-1e+06",
        "fast",
        "abf",
        "resonance-pi-3",
        "resonance-none",
        "bucketed-yarn-1-4-16",
        "one",
        "evq_cosh",
    ]
    factors = ["", "", "auto", "4", "2.5", "1e+06", "4", "", "3", "", "1-4-16", "2.5", ""]
    assert [entry.factor_label for entry in made] == factors


def test_a_bare_word_stands_for_its_type(read):
    names = ("trained", "none", "dynamic_ntk", "abf", "resonance")
    written = ", ".join(f"{{type: {name}}}" for name in names)
    assert entries(read, f"[{', '.join(names)}]") == entries(read, f"[{written}]")


@pytest.mark.parametrize("kind", ["pi", "ntk", "ntk_by_parts", "yarn", "llama3", "mixed_base"])
def test_a_bare_word_has_an_automatic_factor_if_it_extends(read, kind):
    assert kind in EXTENDING
    (entry,) = entries(read, f"[{kind}]")
    assert (entry.label, entry.factor_label) == (f"{kind}-auto", "auto")
    for length, factor in [(32, 1.0), (192, 1.5), (4096, 32.0)]:
        wanted = parse_scaling({"type": kind, "factor": factor})
        assert entry.at(length, 128, NoScaling()) == wanted


def test_the_schema_offers_the_bare_words_that_need_no_other_setting():
    offered = SweepConfig.model_json_schema()["properties"]["scalings"]["items"]["anyOf"][0]["enum"]
    assert {"trained", "none", "pi", "yarn", "dynamic_ntk"} < set(offered)
    assert not {"longrope", "p_rope", "bucketed"} & set(offered)


def test_default_scalings_are_trained_and_three_automatic_ones(read):
    made = read("{}", schema=SweepConfig).scalings
    assert [entry.label for entry in made] == ["trained", "pi-auto", "ntk-auto", "yarn-auto"]


def test_the_trained_entry_is_the_trained_scaling_at_every_length(read):
    own = YaRNScaling(factor=16, beta_fast=20)
    (trained,) = entries(read, "[trained]")
    assert all(trained.at(n, 128, own) is own for n in (1, 128, 100_000))


def test_an_automatic_factor_is_length_over_window_and_at_least_1(read):
    pi, yarn = entries(read, "[{type: pi, factor: auto}, {type: yarn, factor: auto, name: y}]")
    for length, factor in [(32, 1.0), (128, 1.0), (129, 129 / 128), (192, 1.5), (4096, 32.0)]:
        assert pi.at(length, 128, NoScaling()) == PIScaling(factor=factor)
        assert yarn.at(length, 128, NTKScaling(factor=3)) == YaRNScaling(factor=factor)


@pytest.mark.parametrize("kind", EXTENDING)
def test_every_extension_factor_may_be_automatic(read, kind):
    settings = example(kind, factor="auto")
    (entry,) = entries(read, f"[{json.dumps(settings)}]")
    parts = (kind, "auto", settings.get("query_scale", {}).get("type"))
    assert (entry.label, entry.factor_label) == ("-".join(filter(None, parts)), "auto")
    for length, factor in [(32, 1.0), (128, 1.0), (192, 1.5), (4096, 32.0)]:
        wanted = parse_scaling(settings | {"factor": factor})
        assert entry.at(length, 128, NTKScaling(factor=3)) == wanted


def test_the_factor_inside_resonance_may_be_automatic(read):
    (entry,) = entries(read, "[{type: resonance, inner: {type: yarn, factor: auto, beta_fast: 9}}]")
    assert (entry.label, entry.factor_label) == ("resonance-yarn-auto", "auto")
    for length, factor in [(32, 1.0), (192, 1.5)]:
        inner = YaRNScaling(factor=factor, beta_fast=9)
        assert entry.at(length, 128, NoScaling()) == ResonanceScaling(inner=inner)


def test_a_bucketed_entry_is_one_strategy_for_all_lengths(read):
    (entry,) = entries(read, "[{type: bucketed, factors: [1, 4, 16], inner: {type: yarn}}]")
    assert not entry.is_auto
    wanted = parse_scaling({"type": "bucketed", "factors": [1, 4, 16], "inner": {"type": "yarn"}})
    assert [entry.at(n, 128, NoScaling()) for n in (32, 4096)] == [wanted] * 2
    geometry = RotaryGeometry(32, 1e4, 128)
    for length, factor in [(128, 1), (129, 4), (512, 4), (513, 16), (9999, 16)]:
        made = entry.at(length, 128, NoScaling()).frequencies(geometry, length)
        inner = YaRNScaling(factor=factor).frequencies(geometry)
        for a, b in zip(made, inner, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("factor", ["auto", "4"])
def test_the_factor_of_a_bucketed_inner_strategy_is_not_given(complaint, factor):
    message = complaint(
        f"scalings: [{{type: bucketed, factors: [1, 4], inner: {{type: pi, factor: {factor}}}}}]",
        schema=SweepConfig,
    )
    assert message == "C.yaml: scalings.0.inner.factor: is chosen from factors; leave it out"


@pytest.mark.parametrize("place", ["{}", "{{type: resonance, inner: {}}}"])
def test_a_factor_that_is_not_an_extension_cannot_be_automatic(read, complaint, place):
    # dynamic_ntk: s = a·n/L − (a − 1); a is not how many times longer the context becomes
    message = complaint(
        "scalings: [" + place.format("{type: dynamic_ntk, factor: auto}") + "]", schema=SweepConfig
    )
    key = "scalings.0.factor" if place == "{}" else "scalings.0.inner.factor"
    assert message == f"C.yaml: {key}: should be a number, not 'auto'"
    (entry,) = entries(read, "[{type: dynamic_ntk, factor: 4}]")
    assert entry.label == "dynamic_ntk-4"


def test_a_given_factor_is_the_same_at_every_length(read):
    made = entries(
        read,
        "[{type: ntk, factor: 4}, {type: yarn, factor: 2, beta_slow: 3, attention_factor: 1.5}, "
        "none]",
    )
    wanted = [
        NTKScaling(factor=4),
        YaRNScaling(factor=2, beta_slow=3, attention_factor=1.5),
        NoScaling(),
    ]
    for length in (16, 128, 4096):
        assert [entry.at(length, 128, PIScaling(factor=9)) for entry in made] == wanted


def test_entries_replace_the_trained_scaling(read):
    # an entry's own factor is not multiplied with the checkpoint's
    (pi,) = entries(read, "[{type: pi, factor: 4}]")
    assert isinstance(pi, SweepEntry)
    assert pi.at(1024, 128, PIScaling(factor=2)) == PIScaling(factor=4)


NAMES = {
    "[{type: none, map: {type: rerope}}, {type: none, map: {type: rerope}, query_scale: "
    "{type: logn}}]": ["rerope", "rerope-logn"],
    "[{type: yarn, factor: 8, map: {type: rerope}, query_scale: {type: logn}}, {type: yarn, "
    "factor: 8, query_scale: {type: power}}]": ["yarn-8-rerope-logn", "yarn-8-power"],
    "[{type: none, query_scale: {type: logn}}, none]": ["none-logn", "none"],
    # one name, and what differs
    "[{type: none, map: {type: rerope}}, {type: none, map: {type: rerope, window: 64}}]": [
        "rerope",
        "rerope-window=64",
    ],
    "[{type: yarn, factor: 8, beta_slow: 2}, {type: yarn, factor: 8, beta_slow: 2, beta_fast: 8.5, "
    "ramp: rotations}]": ["yarn-8", "yarn-8-beta_fast=8.5-ramp=rotations"],
    "[{type: none, map: {type: rerope, window: 8}, name: mine}, {type: none, map: {type: rerope, "
    "window: 16}}]": ["mine", "rerope"],
    "[{type: bucketed, factors: [1, 4], inner: {type: yarn}}, {type: bucketed, factors: [1, 4], "
    "inner: {type: yarn, beta_fast: 8}}]": [
        "bucketed-yarn-1-4",
        "bucketed-yarn-1-4-beta_fast=8",
    ],
}


@pytest.mark.parametrize(("text", "names"), NAMES.items())
def test_automatic_names_tell_apart_what_differs(read, text, names):
    config = read(f"scalings: {text}", schema=SweepConfig)
    assert [entry.label for entry in config.scalings] == names
    # a sweep's own sweep.yaml is read with the same names
    assert SweepConfig.model_validate(config.model_dump()) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "scalings: [{type: pi, factor: 2}, {type: pi, factor: 2.0}]",
            "scalings: pi-2 occurs twice; give one a name",
        ),
        (
            "scalings: [trained, {type: pi, factor: 2, name: trained}]",
            "scalings.1.name: trained means the checkpoint as it is; choose another",
        ),
        ("scalings: [none, none, trained]", "scalings: none occurs twice; give one a name"),
        (
            "scalings: [yran]",
            f"scalings.0.type: 'yran' is not one of trained, {TYPES}; did you mean yarn?",
        ),
        ("scalings: [{type: pi}]", "scalings.0.factor: is required but was not given"),
        (
            "scalings: [longrope]",
            "scalings.0.short_factor: is required but was not given (and 1 more)",
        ),
        (
            "scalings: [drope]",
            "scalings.0.c: drope needs it for a factor above 1; fit it to the model (0.412 and "
            "0.103 in the paper)",
        ),
        (
            "scalings: [pi, {type: pi, factor: auto}]",
            "scalings: pi-auto occurs twice; give one a name",
        ),
        (
            "scalings: [{factor: 3}]",
            f"scalings.0.type: is required; it is one of trained, {TYPES}",
        ),
        (
            "scalings: [{type: yarn, factor: 2, beta_fats: 3}]",
            "scalings.0.beta_fats: unknown key; did you mean scalings.0.beta_fast?",
        ),
        (
            "scalings: [{type: yarn, factor: 2, beta_fast: 1}]",
            "scalings.0: beta_fast (1) must be above beta_slow (1)",
        ),
        ("lengths: []", "lengths: should have at least one element, not []"),
        ("lengths: [4, 2]", "lengths: [4, 2] must be ascending, without repeats"),
        ("lengths: [2, 4, 4]", "lengths: [2, 4, 4] must be ascending, without repeats"),
        ("lengths: [1, 2]", "lengths.0: should be greater than or equal to 2, not 1"),
        (
            "{lengths: [64, 128], targets: 33}",
            "lengths: 64 is too short for 33 scored targets; the shortest length must be at "
            "least 66, or targets at most 32",
        ),
    ],
)
def test_bad_sweeps_are_explained(complaint, text, message):
    assert complaint(text, schema=SweepConfig) == f"C.yaml: {message}"


@pytest.mark.parametrize(
    ("text", "key", "wrong"),
    [
        ("scalings: []", "scalings", "at least one element"),
        ("scalings: trained", "scalings", "not 'trained'; a list of one element is [trained]"),
        ("scalings: [3]", "scalings.0", "not 3"),
        ("scalings: [{type: pi, factor: aut}]", "scalings.0.factor", "auto"),
        (
            "scalings: [{type: pi, factor: 2, name: a/b}]",
            "scalings.0.name",
            "starting with a letter or digit, not 'a/b'",
        ),
        ("protocols: []", "protocols", "at least one element"),
        ("protocols: [same]", "protocols.0", "'same_tokens'"),
        ("protocols: [same_tokens, same_tokens]", "protocols", "same_tokens"),
        ("bos: always", "bos", "'every_window'"),
        ("split: train", "split", "'test' or 'validation', not 'train'"),
        ("tolerance: 0", "tolerance", "greater than 0"),
    ],
)
def test_bad_values_of_a_sweep_are_explained(complaint, text, key, wrong):
    message = complaint(text, schema=SweepConfig)
    assert message.startswith(f"C.yaml: {key}: ")
    assert wrong in message


def test_the_error_for_a_factor_too_small_gives_the_minimum(complaint):
    # as for a strategy outside a sweep: "auto" is not the only right answer
    message = complaint("scalings: [{type: pi, factor: 0.5}]", schema=SweepConfig)
    assert re.match(r"C.yaml: scalings\.0\.factor: .*(at least|equal to) 1\b.*not 0\.5", message)


def test_a_key_of_another_type_is_not_suggested(complaint):
    message = complaint("scalings: [{type: none, factor: 3}]", schema=SweepConfig)
    *owners, last = (kind for kind in STRATEGIES if kind in (*EXTENDING, "dynamic_ntk"))
    assert message == (
        "C.yaml: scalings.0.factor: unknown key; "
        f"it belongs to scalings.0.type {', '.join(owners)} or {last}"
    )


def test_the_shortest_length_may_be_twice_the_targets(read):
    assert read("{lengths: [64], targets: 32}", schema=SweepConfig).targets == 32
