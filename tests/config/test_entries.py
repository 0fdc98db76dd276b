"""The entries of a sweep: how they are written, named, and made into scalings and maps."""

import json

import pytest
import yaml

from rope_jax.config.entries import Trained, entry_settings
from rope_jax.config.load import dump
from rope_jax.config.strategy import Strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.positions.maps.rerope import LeakyReRoPE
from rope_jax.rope import STRATEGIES, parse_scaling
from rope_jax.rope.strategies import NoScaling, PIScaling, YaRNScaling
from tests.config.examples import settings_of

# The types whose factor is how many times longer the context becomes; in a sweep, it may be auto.
EXTENDING = [
    name
    for name, strategy in STRATEGIES.items()
    if "factor" in strategy.model_fields and name != "dynamic_ntk"
]


@pytest.fixture
def entries(read):
    return lambda text: read(f"scalings: {text}", schema=SweepConfig).scalings


def test_labels_are_made_of_type_and_factor_unless_named(entries):
    made = entries(
        "[trained, none, {type: pi, factor: auto}, {type: pi, factor: 4}, "
        "{type: ntk, factor: 2.5}, {type: yarn, factor: 1.0e+6}, "
        "{type: yarn, factor: 4, beta_fast: 64, name: fast}, {type: abf}, "
        "{type: resonance, inner: {type: pi, factor: 3}}, {type: resonance}, "
        "{type: bucketed, factors: [1, 4, 16], inner: {type: yarn}}, evq_cosh]",
    )
    assert {entry.label: entry.factor_label for entry in made} == {
        "trained": "",
        "none": "",
        "pi-auto": "auto",
        "pi-4": "4",
        "ntk-2.5": "2.5",
        "yarn-1e+06": "1e+06",
        "fast": "4",
        "abf": "",
        "resonance-pi-3": "3",
        "resonance-none": "",
        "bucketed-yarn-1-4-16": "1-4-16",
        "evq_cosh": "",
    }


NAMES = {
    "[{type: none, map: {type: rerope}}, {type: none, map: {type: rerope}, query_scale: "
    "{type: logn}}]": ["rerope", "rerope-logn"],
    "[{type: yarn, factor: 8, map: {type: rerope}, query_scale: {type: logn}}, {type: yarn, "
    "factor: 8, query_scale: {type: power}}]": ["yarn-8-rerope-logn", "yarn-8-power"],
    # one name, and what differs
    "[{type: none, map: {type: rerope}}, {type: none, map: {type: rerope, window: 64}}]": [
        "rerope",
        "rerope-window=64",
    ],
    "[{type: yarn, factor: 8, beta_slow: 2}, {type: yarn, factor: 8, beta_slow: 2, beta_fast: 8.5, "
    "ramp: rotations}]": ["yarn-8", "yarn-8-beta_fast=8.5-ramp=rotations"],
    "[{type: bucketed, factors: [1, 4], inner: {type: yarn}}, {type: bucketed, factors: [1, 4], "
    "inner: {type: yarn, beta_fast: 8}}]": ["bucketed-yarn-1-4", "bucketed-yarn-1-4-beta_fast=8"],
}


@pytest.mark.parametrize(("text", "names"), NAMES.items())
def test_automatic_names_tell_apart_what_differs(read, text, names):
    config = read(f"scalings: {text}", schema=SweepConfig)
    assert [entry.label for entry in config.scalings] == names
    # a sweep's own sweep.yaml is read with the same names
    assert SweepConfig.model_validate(config.model_dump()) == config


def test_a_bare_word_stands_for_its_type_with_an_automatic_factor_if_it_extends(entries):
    short = "[trained, none, dynamic_ntk, abf, resonance, pi, llama3]"
    written = ", ".join(f"{{type: {name}}}" for name in short[1:-1].split(", ")[:5])
    auto = ", ".join(f"{{type: {name}, factor: auto}}" for name in ("pi", "llama3"))
    assert entries(short) == entries(f"[{written}, {auto}]")


def test_default_scalings_are_trained_and_three_automatic_ones():
    made = SweepConfig().scalings
    assert [entry.label for entry in made] == ["trained", "pi-auto", "ntk-auto", "yarn-auto"]


def test_every_extension_factor_may_be_automatic(entries):
    """It is length / window, at least 1."""
    for kind in EXTENDING:
        settings = settings_of(kind) | {"factor": "auto"}
        (entry,) = entries(f"[{json.dumps(settings)}]")
        assert entry.label == f"{kind}-auto-power"
        for length, factor in [(32, 1.0), (128, 1.0), (192, 1.5), (4096, 32.0)]:
            wanted = parse_scaling(settings | {"factor": factor})
            assert entry.at(length, trained(PIScaling(factor=3))) == wanted


# What an entry reads with

ENTRIES = """\
scalings:
  - {type: trained, name: null, map: null, over: null, layers: global, factor: null}
  - {type: pi, query_scale: null, factor: auto, name: null, map: null, over: null, layers: global}
  - type: dynamic_ntk
    query_scale: null
    factor: 2.0
    name: mine
    map: null
    over: base
    layers: global
  - type: resonance
    query_scale: null
    inner: {type: ntk, query_scale: null, factor: auto}
    name: null
    map: null
    over: null
    layers: global
  - type: none
    query_scale: null
    name: null
    map: {type: leaky_rerope, window: 96, k: auto}
    over: null
    layers: global
"""


def trained(scaling, map_=None):
    return Trained(128, scaling, map_, train_length=64)


def test_an_entry_gives_a_scaling_and_is_dumped_as_it_was_given(read):
    config = read(ENTRIES, schema=SweepConfig)
    assert [entry.is_auto for entry in config.scalings] == [False, True, False, True, True]
    yarn = YaRNScaling(factor=3)
    for length in (32, 512):
        factor = max(1.0, length / 128)
        assert [entry.at(length, trained(yarn)) for entry in config.scalings] == [
            yarn,  # the others are not multiplied with it
            parse_scaling({"type": "pi", "factor": factor}),
            parse_scaling({"type": "dynamic_ntk", "factor": 2.0}),
            parse_scaling({"type": "resonance", "inner": {"type": "ntk", "factor": factor}}),
            NoScaling(),
        ]
    assert yaml.safe_load(dump(config))["scalings"] == yaml.safe_load(ENTRIES)["scalings"]


LLAMA3 = parse_scaling({"type": "llama3", "factor": 8.0})
RESOLVED = {  # on a model with a scaling of its own: the name of its curve, and whether it is over
    "trained": ("trained", False),
    "none": ("none", False),
    "pi": ("pi-auto-over-trained", True),
    "{type: yarn, factor: 8, over: base}": ("yarn-8-over-base", False),
    "{type: none, map: {type: rerope}}": ("rerope-over-trained", True),
    "{type: explicit, inv_freq: [0.1, 0.01]}": ("explicit", False),
    "{type: trained, factor: 16}": ("trained-16", False),
}


@pytest.mark.parametrize(("text", "expected"), RESOLVED.items())
def test_a_bare_name_acts_on_the_models_own_scaling_and_its_curve_says_so(entries, text, expected):
    (entry,) = entries(f"[{text}]")
    assert entry.resolved(NoScaling()) == entry
    resolved = entry.resolved(LLAMA3)
    assert (resolved.label, resolved.at(512, trained(LLAMA3)).type == "over") == expected


WITH_OWN_QUERIES = parse_scaling(
    {"type": "yarn", "factor": 4.0, "query_scale": {"type": "constant", "s": 1.2}}
)


@pytest.mark.parametrize("own", [LLAMA3, WITH_OWN_QUERIES, NoScaling()])
@pytest.mark.parametrize(
    "text",
    [
        "trained",
        "{type: trained, map: {type: rerope, window: 64}}",
        "pi",
        "{type: pi, factor: 4, over: base}",
        "{type: pi, factor: 4, map: {type: rerope, window: 64}}",
        "{type: none, map: {type: far_frequencies, far: {type: pi, factor: 4}}}",
        "{type: explicit, inv_freq: [0.1, 0.01], map: {type: rerope, window: 64}}",
        "{type: over, inner: {type: pi, factor: 2}, trained: {type: llama3}, window: 128, "
        "map: {type: rerope, window: 64}}",
    ],
)
def test_a_strategy_file_reads_as_what_was_measured(entries, text, own):
    checkpoint = trained(own)
    (entry,) = (entry.resolved(own) for entry in entries(f"[{text}]"))
    strategy = Strategy(scaling=entry.at(512, checkpoint), map=entry.map_at(512, checkpoint))
    written = json.loads(json.dumps(entry_settings(strategy, "file")))
    (again,) = (entry.resolved(own) for entry in entries(f"[{json.dumps(written)}]"))
    assert again.at(512, checkpoint) == strategy.scaling
    assert again.map_at(512, checkpoint) == strategy.map


def test_automatic_factors_count_from_the_window_and_over_the_base_from_l(entries):
    made = entries("[pi, {type: pi, factor: auto, over: base}, {type: trained, factor: auto}]")
    over, base, continued = (entry.resolved(LLAMA3).at(512, trained(LLAMA3)) for entry in made)
    assert (over.inner.factor, over.window, over.trained) == (4.0, 128, LLAMA3)
    assert base == PIScaling(factor=8.0)
    assert continued == LLAMA3.continued(32.0)
    at_window = made[2].at(128, trained(LLAMA3))
    assert at_window == LLAMA3


def test_far_frequencies_over_trained_are_over_trained_too(entries):
    text = "{type: none, map: {type: far_frequencies, far: {type: pi, factor: 4}}}"
    (entry,) = entries(f"[{text}]")
    map_ = entry.resolved(LLAMA3).map_at(512, trained(LLAMA3))
    assert (map_.far.type, map_.far.inner, map_.far.trained) == (
        "over",
        PIScaling(factor=4),
        LLAMA3,
    )


def test_an_entry_gives_its_map_with_numbers(read):
    config, own = read(ENTRIES, schema=SweepConfig), LeakyReRoPE(window=64, k=2.0)
    yarn = YaRNScaling(factor=3)
    # at the window, auto means no map; `trained` keeps the checkpoint's own
    assert [entry.map_at(128, trained(yarn, own)) for entry in config.scalings] == [
        own,
        *[None] * 4,
    ]
    # k = (n − 1 − w)/(L − 1 − w) = 415/31, rounded up
    made = [entry.map_at(512, trained(yarn, own)) for entry in config.scalings]
    assert made == [own, None, None, None, LeakyReRoPE(window=96, k=13.39)]


def test_a_maps_numbers_may_not_go_with_the_automatic_ones():
    settings = {"type": "none", "map": {"type": "dual_chunk", "local": 200}}
    entry = SweepConfig.model_validate({"scalings": [settings]}).scalings[0]
    assert entry.map_at(128, trained(NoScaling())) is None
    with pytest.raises(ValueError, match=r"^local: 200 leaves no chunk of 96; give at most 95 "):
        entry.map_at(512, trained(NoScaling()))


def test_the_json_schema_offers_auto_a_name_and_bare_words_that_are_complete():
    schema = SweepConfig.model_json_schema()
    offered = schema["properties"]["scalings"]["items"]["anyOf"][0]["enum"]
    assert set(offered) > {"trained", "none", "pi", "yarn", "dynamic_ntk"}
    assert not {"longrope", "p_rope", "bucketed"} & set(offered)
    models = schema["$defs"]
    for name in ("PIScalingEntry", "LongRoPEScalingEntry", "YaRNScalingInner"):
        assert '"auto"' in json.dumps(models[name]["properties"]["factor"])
    assert "auto" not in json.dumps(models["DynamicNTKScalingEntry"]["properties"]["factor"])
    assert "name" in models["PIScalingEntry"]["properties"]
    assert "name" not in models["YaRNScalingInner"]["properties"]


def test_an_entry_of_every_type_is_read_and_dumped(read):
    for kind in STRATEGIES:
        sweep = read("{}", f"scalings=[{json.dumps(settings_of(kind))}]", schema=SweepConfig)
        assert sweep.scalings[0].at(512, trained(NoScaling())) == parse_scaling(settings_of(kind))
        assert read(dump(sweep), schema=SweepConfig) == sweep
