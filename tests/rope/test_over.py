"""A strategy over trained frequencies, against its formula by hand; and a trained one continued."""

import jax
import numpy as np
import pytest

from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.rope.hf import from_hf, to_hf
from rope_jax.rope.strategies.over import over

GEOMETRY = RotaryGeometry(16, 500000.0, 64)  # as of a small Llama 3.1: L 64, window 512
WINDOW = 512
I = np.arange(8)  # noqa: E741
THETA = 500000.0 ** (-2 * I / 16)
TRAINED = {
    "none": {},
    "pi": {"factor": 8.0},
    "llama3": {"factor": 8.0},
    "yarn": {"factor": 8.0},
    "dynamic_ntk": {"factor": 2.0},
    "longrope": {
        "short_factor": [1.0] * 8,
        "long_factor": [1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 8.0],
        "factor": 8.0,
    },
}


def trained_by_hand(name):
    """Return θ of a text as long as the window, and m, by the formulas of each paper."""
    turns = 64 * THETA / (2 * np.pi)
    m = 1.0
    if name == "pi":
        return THETA / 8, m
    if name == "llama3":
        kept = np.clip((turns - 1) / (4 - 1), 0, 1)
        return (1 - kept) * THETA / 8 + kept * THETA, m
    if name == "yarn":
        low, high = (16 * np.log(64 / (2 * np.pi * r)) / (2 * np.log(5e5)) for r in (32, 1))
        ramp = np.clip((I - max(np.floor(low), 0)) / (np.ceil(high) - max(np.floor(low), 0)), 0, 1)
        return THETA * (1 - ramp) + THETA / 8 * ramp, 0.1 * np.log(8) + 1
    if name == "dynamic_ntk":
        return THETA * (2 * 512 / 64 - 1) ** (-2 * I / 14), m
    if name == "longrope":
        return THETA / TRAINED["longrope"]["long_factor"], np.sqrt(1 + np.log(8) / np.log(64))
    return THETA, m


def formula(name, theta, s=4.0):
    """Return each strategy's frequencies on θ and the window, and its m."""
    turns = WINDOW * theta / (2 * np.pi)
    ramp = 1 - np.clip((turns - 1) / (32 - 1), 0, 1)
    by_parts = theta * (1 - ramp) + theta / s * ramp
    kept = np.clip((turns - 1) / 3, 0, 1)
    taper = np.ones(8)
    taper[-2:] = 0.5 * (1 + np.cos([0, np.pi]))
    waves = np.round(2 * np.pi / (theta / s))
    return {
        "pi": (theta / s, 1.0),
        "ntk": (theta * s ** (-2 * I / 14), 1.0),
        "ntk_by_parts": (by_parts, 1.0),
        "yarn": (by_parts, 0.1 * np.log(s) + 1),
        "llama3": ((1 - kept) * theta / s + kept * theta, 1.0),
        "abf": (theta * (2e6 / 5e5) ** (-2 * I / 16), 1.0),
        "mixed_base": (theta * np.exp(-np.log(s) * ((I + 1) / 8) ** 0.75), 1.0),
        "p_rope": (np.where(I < 6, theta / s, 0), 1.0),
        "cope": (theta * taper, 1.0),
        "drope": (0 * theta, np.sqrt(1 + 0.4 * np.log(s))),
        "explicit": (theta / 1.5, 1.2),
        "resonance": (2 * np.pi / waves, 1.0),
    }[name]


INNER = {
    "pi": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "ntk_by_parts": {"factor": 4.0, "ramp": "rotations"},
    "yarn": {"factor": 4.0, "ramp": "rotations"},
    "llama3": {"factor": 4.0},
    "abf": {"base": 2e6},
    "mixed_base": {"factor": 4.0},
    "p_rope": {"p": 0.75, "factor": 4.0},
    "cope": {"c": 2},
    "drope": {"factor": 4.0, "c": 0.4},
    "explicit": {"factors": [1.5] * 8, "attention_factor": 1.2},
    "resonance": {"inner": {"type": "pi", "factor": 4.0}},
}


def scaling(name, settings):
    return parse_scaling({"type": name} | settings)


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("trained", TRAINED)
def test_frequencies_are_the_formula_on_the_trained_ones_and_the_window(name, trained):
    made = over(scaling(name, INNER[name]), scaling(trained, TRAINED[trained]), WINDOW)
    theta, trained_m = trained_by_hand(trained)
    inv_freq, m = formula(name, theta)
    exact, made_m = made.scaled(GEOMETRY)
    np.testing.assert_allclose(exact, inv_freq, rtol=1e-12, atol=1e-20)
    assert made_m == pytest.approx(m * trained_m, rel=1e-12)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("trained", "geometry"),
    [
        ({"type": "abf", "base": 1e4}, RotaryGeometry(64, 1e4, 512)),  # another base
        ({"type": "pi", "factor": 8.0}, RotaryGeometry(64, 5e5, 64)),  # turns in 512/8 tokens
    ],
)
def test_an_index_ramp_counts_turns_in_the_window_where_the_trained_ones_are_geometric(
    trained, geometry, truncate
):
    yarn = scaling("yarn", {"factor": 4.0, "beta_fast": 8.0, "truncate": truncate})
    made, _ = over(yarn, parse_scaling(trained), 512).scaled(RotaryGeometry(64, 5e5, 64))
    plain, _ = yarn.scaled(geometry)
    slower = trained.get("factor", 1.0)
    np.testing.assert_allclose(made, plain / slower, rtol=1e-9)


def test_an_index_ramp_is_interpolated_between_the_trained_pairs():
    """By hand for llama3: the turns of each pair, and where 16 and 2 lie between them."""
    theta, _ = trained_by_hand("llama3")
    logs = np.log(WINDOW * theta / (2 * np.pi))  # of the turns, falling
    ends = []
    for turns in (16, 2):
        i = np.flatnonzero(logs > np.log(turns))[-1]
        ends.append(i + (logs[i] - np.log(turns)) / (logs[i] - logs[i + 1]))
    ramp = np.clip((I - ends[0]) / (ends[1] - ends[0]), 0, 1)
    yarn = {"factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}
    made, _ = over(scaling("yarn", yarn), scaling("llama3", {"factor": 8.0}), 512).scaled(GEOMETRY)
    np.testing.assert_allclose(made, theta * (1 - ramp) + theta / 4 * ramp, rtol=1e-12)


@pytest.mark.parametrize("name", ["pi", "ntk", "yarn", "ntk_by_parts", "llama3", "dynamic_yarn"])
def test_over_no_scaling_and_a_window_of_l_nothing_changes_by_a_bit(name):
    plain = scaling(name, {} if name == "dynamic_yarn" else {"factor": 4.0})
    made = over(plain, parse_scaling("none"), 64)
    for a, b in zip(made.frequencies(GEOMETRY, 300), plain.frequencies(GEOMETRY, 300), strict=True):
        np.testing.assert_array_equal(a, b)


def test_dynamic_forms_grow_from_the_window_on_host_and_device():
    dynamic = scaling("dynamic_yarn", {"ramp": "rotations"})
    made = over(dynamic, scaling("yarn", TRAINED["yarn"]), WINDOW)
    theta, trained_m = trained_by_hand("yarn")
    for n, s in [(100, 1.0), (512, 1.0), (2048, 4.0)]:
        inv_freq, m = formula("yarn", theta, s)
        for length in (n, jax.numpy.int32(n)):
            frequencies = made.frequencies(GEOMETRY, length)
            np.testing.assert_allclose(frequencies.inv_freq, inv_freq, rtol=1e-6)
            assert float(frequencies.attention_factor) == pytest.approx(m * trained_m, rel=1e-6)


def test_over_an_extension_over_an_extension():
    """m multiplies, and each extension acts on what the last one made."""
    pi, yarn = scaling("pi", {"factor": 2.0}), scaling("yarn", TRAINED["yarn"])
    twice = over(pi, over(pi, yarn, 512), 1024)
    theta, m = trained_by_hand("yarn")
    exact, made_m = twice.scaled(GEOMETRY)
    np.testing.assert_allclose(exact, theta / 4, rtol=1e-12)
    assert made_m == pytest.approx(m)
    assert parse_scaling(twice.model_dump()) == twice


def test_a_trained_query_scale_stays_with_its_own_l_and_another_counts_from_the_window():
    ministral = {"type": "ministral", "beta": 0.1}
    yarn = scaling("yarn", {"factor": 8.0, "query_scale": ministral})
    pi = scaling("pi", {"factor": 2.0})
    positions = np.array([63, 64, 600])
    kept = over(pi, yarn, 512)
    np.testing.assert_array_equal(
        kept.query_scale_at(GEOMETRY, positions), yarn.query_scale_at(GEOMETRY, positions)
    )
    assert kept.query_scale == yarn.query_scale
    logn = pi.model_copy(update={"query_scale": parse_query_scale("logn")})
    own = over(logn, scaling("llama3", TRAINED["llama3"]), 512)
    wanted = np.maximum(1, np.log(positions + 1) / np.log(512))
    np.testing.assert_allclose(own.query_scale_at(GEOMETRY, positions), wanted, rtol=1e-6)
    with pytest.raises(ValueError, match=r"^query_scale: the model was trained with one"):
        over(logn, yarn, 512)


def parse_query_scale(name):
    return scaling("none", {"query_scale": {"type": name}}).query_scale


@pytest.mark.parametrize(
    ("name", "settings"),
    [("evq_cosh", {}), ("explicit", {"inv_freq": [0.1] * 8})],
)
def test_what_chooses_all_frequencies_anew_acts_on_none(name, settings):
    with pytest.raises(ValueError, match=f"^inner: {name} chooses all frequencies anew"):
        over(scaling(name, settings), scaling("llama3", TRAINED["llama3"]), 512)


# Layers: a local one with its own base and scaling, a global one, and one that does not rotate.

PATTERN = (
    LayerOverride(base=1e4, scaling=parse_scaling("none")),
    LayerOverride(),
    LayerOverride(scaling=parse_scaling("drope")),
)


@pytest.mark.parametrize("layers", ["global", "all"])
def test_local_layers_keep_their_own_frequencies_unless_all_are_asked_for(layers):
    rotary = RotaryLayers(GEOMETRY, 3, PATTERN)
    made = over(scaling("pi", {"factor": 2.0}), scaling("pi", {"factor": 8.0}), 512, layers)
    local, global_, unrotated = rotary.frequencies(made).inv_freq[:, 0]
    theta = 1e4 ** (-2 * I / 16)
    np.testing.assert_allclose(local, theta / (2 if layers == "all" else 1), rtol=1e-6)
    np.testing.assert_allclose(global_, THETA / 16, rtol=1e-6)
    np.testing.assert_array_equal(unrotated, 0)


# Continued: the trained strategy with a larger factor, as a runtime computes it from a config.

LLAMA = {"head_dim": 64, "rope_theta": 5e5, "max_position_embeddings": 131072}
ORIGINAL = {"original_max_position_embeddings": 8192}
CONTINUED = {
    "llama3": ORIGINAL | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": ORIGINAL | {"beta_fast": 16.0},
    "linear": {},
}
DEEPSEEK = ORIGINAL | {"rope_type": "yarn", "mscale": 1.0, "mscale_all_dim": 0.707}


@pytest.mark.parametrize("name", CONTINUED)
def test_continued_is_what_the_config_says_with_a_larger_factor(name):
    trained, wanted = (
        from_hf(LLAMA | {"rope_scaling": {"rope_type": name, "factor": s} | CONTINUED[name]})
        for s in (8.0, 16.0)
    )
    assert trained[1].continued(16.0) == wanted[1]
    written = to_hf(trained[0], trained[1].continued(16.0), max_position_embeddings=131072)
    assert written["rope_scaling"]["factor"] == 16.0


def test_deepseeks_scale_of_the_softmax_follows_a_larger_factor():
    configs = [
        LLAMA | {"model_type": "deepseek_v3", "rope_scaling": DEEPSEEK | {"factor": s}}
        for s in (4.0, 40.0)
    ]
    (_, trained), (_, wanted) = map(from_hf, configs)
    assert trained.continued(40.0) == wanted
    assert wanted.query_scale.s > trained.query_scale.s > 1


@pytest.mark.parametrize(
    ("name", "settings", "factor", "message"),
    [
        ("longrope", TRAINED["longrope"], 16.0, "^factor: longrope's λ were searched for one"),
        ("none", {}, 2.0, "^factor: the model's own scaling, none, has none to continue"),
        ("llama3", {"factor": 8.0}, 4.0, "^factor: 4 is below the 8 of training"),
    ],
)
def test_what_cannot_be_continued_is_refused(name, settings, factor, message):
    with pytest.raises(ValueError, match=message):
        scaling(name, settings).continued(factor)
