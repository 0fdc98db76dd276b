"""What a fit learns, and that a sweep of the strategy file computes what the fit computed."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter

from rope_jax.config.entries import AnyEntry
from rope_jax.config.fit import LEARNED
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.strategy import Strategy, read_strategy, write_strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.fitting.parameters import Parameters, default_start, parameters_of
from rope_jax.model.decoder import DecoderInputs
from rope_jax.positions.mapping import with_map
from rope_jax.rope import Rotary
from tests.fitting.conftest import MODEL, WINDOW, fit_config

VOCABULARY, LENGTH = 23, 64
STAGE = {"steps": 2, "seq_len": WINDOW, "batch_size": 4}
POSITIONS = np.arange(LENGTH, dtype=np.int32)[None]
parse_entry = TypeAdapter(AnyEntry).validate_python
LOGN = {"query_scale": {"type": "logn"}}
STARTS: dict[str, Any] = {
    "none": "none",
    "pi": {"type": "pi", "factor": 4},
    "yarn": {"type": "yarn", "factor": 4, **LOGN},
    "rerope": {"type": "none", "map": {"type": "rerope", "window": 9}, **LOGN},
    "leaky": {"type": "none", "map": {"type": "leaky_rerope", "window": 9}},
    "far": {
        "type": "pi",
        "factor": 1.5,
        "query_scale": {"type": "power", "p": 0.3},
        # its m, which acts on far keys only, becomes an amplitude
        "map": {"type": "far_frequencies", "window": 9, "far": {"type": "yarn", "factor": 4.0}},
    },
}
OF_ALL = ["frequencies", "attention_factor", "query_scale"]
OF_MAPS = [*LEARNED]


@functools.cache
def training_config(pattern: str = "") -> TrainingConfig:
    rope: dict[str, Any] = {"base": 100.0}
    if pattern:
        layer = {"base": {"base": 400.0}, "scaling": {"scaling": {"type": "pi", "factor": 2.0}}}
        rope["layer_pattern"] = [{}, layer[pattern]]
    return TrainingConfig.model_validate(
        {"name": "x", "model": MODEL, "rope": rope, "stages": [STAGE], "optim": {"warmup_steps": 0}}
    )


@functools.cache
def model_and_params() -> Any:
    model = language_model(resolve_run(training_config()), VOCABULARY)
    return model, model.init(0), jax.jit(model.nll)


def tokens() -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCABULARY, (2, LENGTH + 1)).astype(np.int32)


def nll(rotary: Rotary) -> Any:
    _, params, run = model_and_params()
    text = tokens()
    return run(params, DecoderInputs(text[:, :-1], text[:, 1:], POSITIONS, None, rotary))


def made(start: Any, training: TrainingConfig | None = None, **how: Any) -> Parameters:
    training = training or training_config()
    return parameters_of(training, fit_config(**how), parse_entry(start), 0)


def as_swept(scaling: Any, map_: Any, training: TrainingConfig | None = None) -> Rotary:
    """Return the model's argument as a sweep makes it."""
    layers = (training or training_config()).rotary_layers
    rotary = layers.rotary(scaling, POSITIONS, LENGTH)
    if map_ is None:
        return rotary
    return with_map(rotary, map_, layers, POSITIONS, window=WINDOW, seq_len=LENGTH)


def random_free(parameters: Parameters, size: float = 0.3) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    free = parameters.initial()
    moved = {
        name: jnp.asarray(rng.uniform(-size, size, x.shape), jnp.float32)
        for name, x in free.items()
    }
    return parameters.projected(moved)


@pytest.mark.parametrize(("name", "per"), [*((name, "head") for name in STARTS), ("far", "model")])
def test_the_start_gives_the_same_losses_as_without_a_fit(name, per):
    entry, trained = parse_entry(STARTS[name]), training_config().trained(0)
    map_ = entry.map_at(LENGTH, trained)
    parameters = made(STARTS[name], learn=OF_MAPS if map_ else OF_ALL, per=per)
    found = nll(parameters.rotary(parameters.initial(), POSITIONS, LENGTH))
    scaling = entry.at(LENGTH, trained)
    np.testing.assert_allclose(found, nll(as_swept(scaling, map_)), atol=2e-5)


WRITTEN = {
    "everything, by head and octave": ("rerope", {"learn": OF_MAPS, "far_bands": "octaves"}),
    "everything, by layer": ("far", {"learn": OF_MAPS, "per": "layer"}),
    "far keys, by head": ("leaky", {"learn": ["far_frequencies"]}),
    "far phases only": ("rerope", {"learn": ["far_phase"]}),
    "near keys, by head": ("none", {"learn": ["frequencies", "attention_factor"]}),
    "a query scale, by layer": ("pi", {"learn": ["query_scale"], "per": "layer"}),
    "explicit, by layer": ("yarn", {"learn": OF_ALL[:2], "per": "layer"}),
    "explicit, by model": ("none", {"learn": ["frequencies"], "per": "model"}),
    "m alone": ("pi", {"learn": ["attention_factor"], "per": "model"}),
}


def assert_same(fitted: Rotary, swept: Rotary) -> None:
    """Compare two arguments of the model, leaf by leaf: one with bands may have a single one."""
    if swept.bands:
        assert jax.tree.structure(fitted) == jax.tree.structure(swept)
        pairs = zip(jax.tree.leaves(fitted), jax.tree.leaves(swept), strict=True)
    else:
        (band,) = fitted.bands
        near = jax.tree.map(lambda x: x[:, :, 0], band.frequencies)
        pairs = zip(
            (*near, fitted.query_scale), (*swept.frequencies, swept.query_scale), strict=True
        )
    for mine, theirs in pairs:
        np.testing.assert_allclose(*np.broadcast_arrays(mine, theirs), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("pattern", ["", "base", "scaling"])
@pytest.mark.parametrize(("start", "how"), WRITTEN.values(), ids=WRITTEN)
def test_a_sweep_of_the_strategy_file_computes_what_the_fit_computed(start, how, pattern, tmp_path):
    """The model's argument: a pattern of layers changes no program."""
    training = training_config(pattern)
    parameters = made(STARTS[start], training, **how)
    free = random_free(parameters)
    write_strategy(parameters.strategy(free), tmp_path / "strategy.json")
    strategy = read_strategy(str(tmp_path / "strategy.json"))
    fitted = parameters.rotary(free, POSITIONS, LENGTH)
    assert_same(fitted, as_swept(strategy.scaling, strategy.map, training))


def test_shared_frequencies_in_a_map_are_those_of_explicit():
    parameters = made("none", learn=["frequencies"], per="layer")
    strategy = parameters.strategy(random_free(parameters))
    assert strategy.map is None
    by_head = made("none", learn=["frequencies"], per="head")
    free = random_free(parameters)["frequencies"]
    every = {"frequencies": jnp.broadcast_to(free, by_head.initial()["frequencies"].shape)}
    map_ = by_head.strategy(every).map
    assert map_ is not None
    none = training_config().stage_scaling(0)
    assert_same(as_swept(none, map_), as_swept(strategy.scaling, None))


def test_every_kind_of_number_has_a_gradient_in_every_layer_and_head():
    """With unrolled layers, as by default."""
    parameters = made(STARTS["rerope"], learn=OF_MAPS, far_bands="octaves", length=32)
    raw = training_config().model_dump() | {"model": MODEL | {"layers": "unrolled"}}
    model = language_model(resolve_run(TrainingConfig.model_validate(raw)), VOCABULARY)
    params, text, positions = model.init(0), jnp.asarray(tokens()[:, :33]), POSITIONS[:, :32]

    @jax.jit
    @jax.value_and_grad
    def loss(free: Any, params: Any) -> Any:
        rotary = parameters.rotary(free, positions, 32)
        windows = DecoderInputs(text[:, :-1], text[:, 1:], jnp.asarray(positions), None, rotary)
        return model.nll(params, windows).mean()

    value, gradient = loss(parameters.initial(), params)
    assert set(gradient) == {*OF_MAPS, "query_scale_s", "query_scale_p"} - {"query_scale"}
    for name, leaf in gradient.items():
        assert np.isfinite(leaf).all()
        # every number acts on a text of 32 tokens: bands begin at 9 and 18
        assert (np.asarray(leaf) != 0).all(), name
    start, size = parameters.initial(), 0.02
    lower, _ = loss(jax.tree.map(lambda x, g: x - size * jnp.sign(g), start, gradient), params)
    assert lower < value


@pytest.mark.parametrize(("per", "count"), [("model", 1), ("layer", 2), ("head", 8)])
def test_how_many_numbers_are_learned(per, count):
    """2 pairs; 2 layers, 4 heads and 2 key-value heads, which have the frequencies."""
    kv = min(count, 4)
    counts = {
        "frequencies": 2 * kv,
        "attention_factor": kv,
        "query_scale": 2 * count,
        "far_frequencies": 2 * kv,
        "far_phase": 2 * count,
        "far_amplitude": 2 * count,
        "bias": 4 * count,  # knots at 9, 18, 36 and 72
    }
    for name, wanted in counts.items():
        parameters = made(STARTS["rerope"], learn=[name], per=per)
        assert parameters.count == wanted, name
    octaves = made(STARTS["rerope"], learn=["far_phase"], per=per, far_bands="octaves")
    assert octaves.borders == (9, 18, 36)
    assert octaves.count == 3 * counts["far_phase"]


def test_layers_that_share_a_change_of_frequencies_keep_the_bounds():
    """λ is θ/θ', whatever the start's."""
    how = {"learn": ["frequencies"], "per": "model", "bounds": [0.5, 8.0]}
    training = training_config("base")  # two bases, so a third one means two λ for each pair
    parameters = made({"type": "abf", "base": 900.0}, training, **how)
    assert np.ptp(parameters.log_factors, axis=0).max() > 0.01
    free = parameters.projected(random_free(parameters, 9.0))
    assert free["frequencies"].shape == parameters.initial()["frequencies"].shape
    factors = np.exp(parameters.log_factors + np.asarray(free["frequencies"], np.float64))
    assert (factors >= 0.5 - 1e-6).all()
    assert (factors <= 8 + 1e-5).all()


def steps_at_borders(numbers: Any, borders: tuple[int, ...]) -> np.ndarray:
    """Return by how much the angle changes where each far band begins: [F, l, k, pairs]."""
    near, far = np.asarray(numbers.near_inv_freq), np.asarray(numbers.far_inv_freq)
    phases = np.asarray(numbers.far_phase)
    steps, theta, phase = [], near, np.zeros_like(near)
    for border, next_theta, next_phase in zip(borders, far, phases, strict=True):
        steps.append((next_theta - theta) * border + next_phase - phase)
        theta, phase = next_theta, next_phase
    return np.array(steps)


@pytest.mark.parametrize("map_", ["leaky", "far"])
@pytest.mark.parametrize("far_bands", ["one", "octaves"])
def test_changed_frequencies_add_no_step_to_the_angle_at_a_border(map_, far_bands):
    learn = ["frequencies", "far_frequencies"]
    parameters = made(STARTS[map_], learn=learn, per="layer", far_bands=far_bands)
    found = parameters.numbers(random_free(parameters))
    assert np.ptp(np.asarray(found.far_inv_freq) - parameters.start.far_inv_freq) > 0.005
    steps = steps_at_borders(found, parameters.borders)
    before = steps_at_borders(parameters.start, parameters.borders)
    np.testing.assert_allclose(steps, before, atol=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("start", ["rerope", "far"])
def test_huge_free_parameters_give_a_valid_strategy(start, sign):
    """Among them frequencies of π, of which float32 has none that is not larger."""
    parameters = made(STARTS[start], learn=OF_MAPS, bounds=[1e-9, 1e9])
    huge = jax.tree.map(lambda x: jnp.full_like(x, sign * 1e5), parameters.initial())
    strategy = parameters.strategy(parameters.projected(huge))
    assert Strategy.model_validate(strategy.model_dump(mode="json")) == strategy
    shared = made("none", learn=OF_ALL[:2], per="model", bounds=[1e-9, 1e9])
    huge = jax.tree.map(lambda x: jnp.full_like(x, sign * 1e5), shared.initial())
    assert shared.strategy(shared.projected(huge)).scaling.type == "explicit"


def test_a_fit_may_start_from_a_fit_with_more_numbers():
    first = made(STARTS["leaky"], learn=["far_frequencies", "bias"], per="head")
    free = random_free(first)
    fitted = first.strategy(free)
    entry = {"type": "none", "map": fitted.map.model_dump()}
    neutral = {"near_inv_freq": training_config().geometry.inv_freq(), "attention_factor": 1}
    neutral |= {"far_amplitude": 1, "scale_s": 1, "scale_p": 0}
    wanted = neutral | {n: x for n, x in first.numbers(free)._asdict().items() if x is not None}
    for per, learn in (("model", ["far_frequencies"]), ("head", OF_MAPS)):
        parameters = made(entry, learn=learn, per=per)
        for name, found in parameters.numbers(parameters.initial())._asdict().items():
            if found is not None:
                pair = np.broadcast_arrays(found, wanted[name])
                np.testing.assert_allclose(*pair, rtol=2e-6, err_msg=name)
        again = parameters.strategy(random_free(parameters))
        again.map.check_heads(4, 2)


def test_the_default_start_keeps_the_checkpoints_scaling():
    pi = {"type": "pi", "factor": 2.0}
    raw = training_config().model_dump() | {"stages": [STAGE, STAGE | {"scaling": pi}]}
    training = TrainingConfig.model_validate(raw)
    assert default_start(training, 0)["type"] == "none"
    entry = parse_entry(default_start(training, 1))
    assert (entry.type, entry.factor, entry.query_scale.type) == ("pi", 2.0, "logn")
    assert entry.map.window == 8


REFUSED = {
    "length-dependent": (
        {"type": "dynamic_ntk"},
        {"learn": ["frequencies"]},
        "dynamic_ntk: dynamic_ntk has other frequencies at every length",
    ),
    "no far keys": (
        "none",
        {"learn": ["frequencies", "bias"]},
        "none: learn: bias belongs to far keys, of which only a map knows; start from rerope, lea",
    ),
    "another map": (
        {"type": "none", "map": {"type": "string"}},
        {},
        "string: map string cannot be fitted; start from rerope, leaky_rerope, ",
    ),
    "no rotation": (
        {"type": "drope"},
        {"learn": ["frequencies"]},
        "drope: learn: frequencies: no pair rotates",
    ),
    "another query scale": (
        {"type": "none", "query_scale": {"type": "ministral", "beta": 0.1}},
        {"learn": ["query_scale"]},
        "none-ministral: learn: query_scale ministral has another form than s·max(1, ln n / ln L)",
    ),
    "bounds that leave out the start": (
        {"type": "yarn", "factor": 4.0},
        {"learn": ["frequencies"], "bounds": [2.0, 8.0]},
        "yarn-4: bounds: [2.0, 8.0] leaves out λ of the start, which are 1 to 4",
    ),
    "auto without a solution": (
        {"type": "none", "map": {"type": "leaky_rerope", "window": 15}},
        {},
        "leaky_rerope: window: 15 is too large; give at most 14",
    ),
}


@pytest.mark.parametrize(("start", "how", "says"), REFUSED.values(), ids=REFUSED)
def test_a_start_that_the_fit_cannot_change_is_refused(start, how, says):
    with pytest.raises(UserError, match=f"^start: {re.escape(says)}"):
        made(start, **how)


def test_a_query_scale_alone_changes_a_model_that_does_not_rotate():
    parameters = made({"type": "drope"}, learn=["query_scale"])
    assert parameters.count == 16
