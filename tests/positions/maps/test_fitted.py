"""`fitted` maps: attention and its gradients against a dense float64 reference.

Notation as in `rope_jax.positions.mapping`. Every number is random and differs by layer and head,
so that none can stand for another.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter

from rope_jax.positions.mapping import FittedParams, fitted_rotary, with_map
from rope_jax.positions.maps import AnyMap
from rope_jax.positions.mask import BandMask
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling
from tests.positions.maps.dense import (
    GEOMETRY,
    HEADS,
    KV_HEADS,
    LENGTH,
    PAIRS,
    POSITIONS,
    QUERIES,
    WINDOW,
    Q,
    dense_attention,
    layer_attention,
)

parse = TypeAdapter(AnyMap).validate_python
LAYERS, LAYER, BORDERS, KNOTS = 2, 1, (9, 20), 3


def random_numbers(layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS):
    """Return numbers in float64, exactly representable in float32."""
    rng = np.random.default_rng(layers + heads)
    made = {
        "near_inv_freq": rng.uniform(0.01, 1, (layers, kv_heads, PAIRS)),
        "attention_factor": rng.uniform(0.8, 1.2, (layers, kv_heads)),
        "far_inv_freq": rng.uniform(-0.2, 0.6, (len(BORDERS), layers, kv_heads, PAIRS)),
        "far_phase": rng.uniform(-3, 3, (len(BORDERS), layers, heads, PAIRS)),
        "far_amplitude": rng.uniform(0.5, 2, (len(BORDERS), layers, heads, PAIRS)),
        "scale_s": rng.uniform(0.7, 1.3, (layers, heads)),
        "scale_p": rng.uniform(-0.5, 1.5, (layers, heads)),
        "bias": rng.uniform(-1, 1, (layers, HEADS, KNOTS)),
    }
    return {name: x.astype(np.float32).astype(np.float64) for name, x in made.items()}


def by_definition(numbers):
    """Attention as the docstring of `FittedMap` defines it, in float64."""

    def own(x):  # the numbers of LAYER for each head, consecutive ones sharing a group's
        row = x[min(LAYER, len(x) - 1)]
        return np.repeat(row, HEADS // len(row), axis=0)[:, None, None]

    index = np.arange(LENGTH)
    distance = (index[:, None] - index)[-QUERIES:]
    steps, m = distance[..., None], own(numbers["attention_factor"])[..., None]
    angles, weight = own(numbers["near_inv_freq"]) * steps, m**2
    for band, border in enumerate(BORDERS):
        theta, phase, amplitude = (
            own(numbers[name][band]) for name in ("far_inv_freq", "far_phase", "far_amplitude")
        )
        angles = np.where(steps >= border, theta * steps + phase, angles)
        weight = np.where(steps >= border, m**2 * amplitude, weight)
    ratio = np.maximum(1, np.log(POSITIONS[0, -QUERIES:] + 1) / np.log(WINDOW))
    scale = own(numbers["scale_s"])[:, 0] * ratio ** own(numbers["scale_p"])[:, 0]
    # linear between two knots in ln d, which rounding to whole distances does not change
    octaves = np.log2(np.maximum(distance, BORDERS[0]) / BORDERS[0])
    added = [np.interp(octaves, np.arange(KNOTS), bias) for bias in own(numbers["bias"])[:, 0, 0]]
    return dense_attention(angles, weight, scale, np.where(distance >= BORDERS[0], added, 0))


def as_map(numbers, borders=BORDERS):
    lists = {name: x.tolist() for name, x in numbers.items()}
    return parse({"type": "fitted", "train_length": WINDOW, "borders": borders} | lists)


def plain_rotary(length=LENGTH):
    return RotaryLayers(GEOMETRY).rotary(parse_scaling("none"), POSITIONS, length)


def on_host(map_):
    layers = RotaryLayers(GEOMETRY)
    return with_map(plain_rotary(), map_, layers, POSITIONS, window=WINDOW, seq_len=LENGTH)


def from_params(numbers, positions=POSITIONS, length=LENGTH, borders=BORDERS):
    """Return the model's argument as a fit makes it, from numbers that may be traced."""
    ends = zip((0, *borders), (*borders, None), strict=True)
    masks = [BandMask(nearest=first, beyond=last) for first, last in ends]
    made = FittedParams(**numbers)
    sizes = {"train_length": WINDOW, "seq_len": length}
    return fitted_rotary(plain_rotary(), made, masks, positions, **sizes)


def test_attention_in_blocks_and_its_gradients_are_those_of_the_definition():
    """Gradients of every kind of number: along a random direction, and in the other layer."""
    numbers, rng = random_numbers(), np.random.default_rng(7)
    weights = rng.standard_normal(Q.shape).astype(np.float32)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient_and_output(numbers):
        rotary = from_params(numbers, jnp.asarray(POSITIONS))
        found = layer_attention(rotary, "blockwise", LAYER)
        return (found * weights).sum(), found

    gradient, found = gradient_and_output({name: np.float32(x) for name, x in numbers.items()})
    np.testing.assert_allclose(found, by_definition(numbers), atol=1e-5)
    for name, x in numbers.items():
        direction = rng.standard_normal(x.shape)
        step = 1e-5 * direction
        high, low = (by_definition(numbers | {name: y}) for y in (x + step, x - step))
        wanted = ((high - low) * weights).sum() / 2e-5
        found = np.float64(gradient[name])
        assert (found * direction).sum() == pytest.approx(wanted, rel=1e-3), name
        layer_axis = int(name.startswith("far_"))
        assert not np.moveaxis(found, layer_axis, 0)[0].any(), "of the other layer"


def test_a_traced_map_is_the_one_on_the_host():
    numbers = random_numbers()
    float32 = {name: np.float32(x) for name, x in numbers.items()}
    traced = jax.jit(from_params)(float32, POSITIONS)
    for a, b in zip(
        jax.tree.leaves(traced), jax.tree.leaves(on_host(as_map(numbers))), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("shared", ["nothing", "m", "heads", "layers and key-value heads"])
def test_layers_and_heads_may_share_numbers(shared):
    sizes = {"heads": (LAYERS, 1, 1), "layers and key-value heads": (1, HEADS, 1)}
    numbers = random_numbers(*sizes.get(shared, ()))
    if shared == "m":
        numbers["attention_factor"] = numbers["attention_factor"][:1, :1]
    found = layer_attention(on_host(as_map(numbers)), "xla", LAYER)
    np.testing.assert_allclose(found, by_definition(numbers), atol=1e-5)


def test_grouped_query_attention_without_far_keys():
    """Near frequencies by key-value head, and nothing that has a number for each query head."""
    numbers = random_numbers()
    every = numbers | {
        "far_inv_freq": np.stack([numbers["near_inv_freq"]] * len(BORDERS)),
        "far_phase": np.zeros_like(numbers["far_phase"]),
        "far_amplitude": np.ones_like(numbers["far_amplitude"]),
        "scale_s": np.ones((1, 1)),
        "scale_p": np.zeros((1, 1)),
        "bias": np.zeros((1, HEADS, KNOTS)),
    }
    near = {name: numbers[name] for name in ("near_inv_freq", "attention_factor")}
    found = layer_attention(on_host(as_map(near, borders=())), "xla", LAYER)
    np.testing.assert_allclose(found, by_definition(every), atol=1e-5)


def test_the_bias_beyond_its_last_knot_and_at_short_lengths_golden():
    numbers = {"bias": np.array([[[1.0, 3.0]]])} | {
        "far_inv_freq": np.zeros((1, 1, 1, PAIRS)),
        "far_phase": np.zeros((1, 1, 1, PAIRS)),
    }
    # distances up to the last knot, at 18
    for length, wanted in ((8, 8), (14, 14), (200, 19)):
        positions = np.arange(length, dtype=np.int32)[None]
        found = from_params(numbers, positions, length, (9,)).bias[0, 0, 0]
        curve = [*[0] * 9, *(1 + 2 * np.log2(np.arange(9, 19) / 9))]
        np.testing.assert_allclose(found, curve[:wanted], rtol=1e-6)


def test_numbers_of_another_model_are_refused():
    map_ = as_map(random_numbers())
    map_.check_layers(RotaryLayers(GEOMETRY, count=LAYERS))
    map_.check_heads(HEADS, KV_HEADS)
    for geometry, count, says in (
        (GEOMETRY, 3, "near_inv_freq: .* 2 layers"),
        (RotaryGeometry(16, 100.0, 24), 2, r"near_inv_freq: .* 4 pairs, .* 8 \(rotary_dim 16\)"),
        (RotaryGeometry(8, 100.0, 32), 2, "train_length: .* 24 tokens, not 32"),
    ):
        with pytest.raises(ValueError, match=says):
            map_.check_layers(RotaryLayers(geometry, count=count))
    with pytest.raises(ValueError, match=r"near_inv_freq: .* 2 heads, and the model has 4"):
        map_.check_heads(HEADS, 4)
    with pytest.raises(ValueError, match=r"far_phase: .* 4 heads, and the model has 8"):
        map_.check_heads(8, KV_HEADS)
