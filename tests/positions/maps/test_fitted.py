"""`fitted` maps: attention and its gradients against a dense float64 reference.

Notation as in `rope_jax.positions.mapping`. Every number is random and differs by layer and head,
so that none can stand for another.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from rope_jax.attention import BACKENDS
from rope_jax.attention.blockwise import banded_blockwise
from rope_jax.model.layers import LayerInputs, LayerKind, attend
from rope_jax.positions.bands import band_masks, rotations
from rope_jax.positions.encodings import RoPE
from rope_jax.positions.mapping import FittedParams, fitted_rotary, with_map
from rope_jax.positions.maps import AnyMap
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling

pytestmark = pytest.mark.usefixtures("compiled_quickly")

parse = TypeAdapter(AnyMap).validate_python
# 8 of 12 dimensions rotate; 91 is no multiple of the blocks' 16 tokens
LENGTH, QUERIES, WINDOW, GEOMETRY, WIDTH = 91, 70, 24, RotaryGeometry(8, 100.0, 24), 12
LAYERS, HEADS, KV_HEADS, PAIRS, BORDERS, KNOTS = 2, 4, 2, 4, (9, 20, 41), 3
LAYER = 1
# two documents in a window, the second of which begins inside a block
DOCUMENTS = (38, 53)
POSITIONS = np.concatenate([np.arange(n, dtype=np.int32) for n in DOCUMENTS])[None]
SEGMENTS = np.repeat(np.arange(2, dtype=np.int32), DOCUMENTS)[None]


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


def random_inputs(batch=2):
    rng = np.random.default_rng(3)
    shapes = [(batch, QUERIES, HEADS, WIDTH), *[(batch, LENGTH, KV_HEADS, WIDTH)] * 2]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def own_numbers(x, layer, count):
    """Return the numbers of one layer for `count` heads, consecutive ones sharing a group's."""
    row = x[min(layer, len(x) - 1)]
    return np.repeat(row, count // len(row), axis=0)


def dense_attention(numbers, layer, q, k, v, positions, segments):
    """Attention as the docstring of `FittedMap` defines it, in float64 with whole matrices."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    size, length = k.shape[1], q.shape[1]
    own = functools.partial(own_numbers, layer=layer, count=HEADS)
    k, v = (np.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
    index = np.arange(size)
    distance = (index[:, None] - index)[-length:]
    seen = (distance >= 0) & (segments[0][:, None] == segments[0])[-length:]
    first, second, rest = np.split(q, [PAIRS, 2 * PAIRS], axis=-1)
    key_first, key_second, key_rest = np.split(k, [PAIRS, 2 * PAIRS], axis=-1)
    logits = np.einsum("bthc,bshc->bhts", rest, key_rest)
    # (x_a, x_b) as the complex number x_a + i·x_b, so that a rotation is a product
    products = np.einsum(
        "bthp,bshp->bhtsp", first + 1j * second, (key_first + 1j * key_second).conj()
    )
    m = own(numbers["attention_factor"])[:, None, None]
    for band, (nearest, beyond) in enumerate(
        zip((0, *BORDERS), (*BORDERS, np.inf), strict=True), start=-1
    ):
        if band < 0:
            theta, phase, amplitude = own(numbers["near_inv_freq"]), 0.0, 1.0
        else:
            theta = own(numbers["far_inv_freq"][band])
            phase = own(numbers["far_phase"][band])[:, None, None]
            amplitude = own(numbers["far_amplitude"][band])[:, None, None]
        angle = theta[:, None, None] * distance[..., None] + phase
        turned = (products * np.exp(1j * angle)).real * amplitude
        inside = (distance >= nearest) & (distance < beyond)
        logits = logits + np.where(inside, turned.sum(-1) * m**2, 0)
    n = positions[0, -length:] + 1
    ratio = np.maximum(1, np.log(n) / np.log(WINDOW))
    scale = own(numbers["scale_s"])[:, None] * ratio ** own(numbers["scale_p"])[:, None]
    logits = logits * scale[..., None] / np.sqrt(WIDTH)
    octaves = np.log2(np.maximum(distance, BORDERS[0]) / BORDERS[0])
    for head in range(HEADS):
        bias = numbers["bias"][min(layer, len(numbers["bias"]) - 1), head]
        # linear between two knots in ln d, which rounding to whole distances does not change
        added = np.interp(octaves, np.arange(KNOTS), bias)
        logits[:, head] += np.where(distance >= BORDERS[0], added, 0)
    logits = np.where(seen, logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhts,bshc->bthc", weights, v)


def attention(rotary, layer, q, k, v, positions, segments, backend):
    """Return attention as a layer computes it, from the model's argument."""
    of_layer = lambda leaf: leaf[min(layer, len(leaf) - 1)]  # noqa: E731
    q, k, v = (jnp.asarray(x, jnp.float32) for x in (q, k, v))
    segments = None if segments is None else jnp.asarray(segments)
    every = jax.tree.map(of_layer, rotations(rotary, jnp.asarray(positions)))
    q, k, v, segments = map(jnp.asarray, (q, k, v, segments))
    bias = None if rotary.bias is None else of_layer(jnp.asarray(rotary.bias))
    inputs = LayerInputs(every, jnp.asarray(rotary.query_scale)[0], {}, segments, bias)
    kind = LayerKind(masks=band_masks(rotary))
    return attend(q, k, v, inputs, kind, backend=backend, encoding=RoPE(), layout="half")


def as_map(numbers):
    lists = {name: x.tolist() for name, x in numbers.items()}
    return parse({"type": "fitted", "train_length": WINDOW, "borders": BORDERS} | lists)


def on_host(numbers):
    layers = RotaryLayers(GEOMETRY)
    rotary = layers.rotary(parse_scaling("none"), POSITIONS, LENGTH)
    return with_map(rotary, as_map(numbers), layers, POSITIONS, window=WINDOW, seq_len=LENGTH)


def traced(numbers):
    """Return the model's argument as a fit makes it, from numbers that may be traced."""
    rotary = RotaryLayers(GEOMETRY).rotary(parse_scaling("none"), POSITIONS, LENGTH)
    keys = [band.mask for band in as_map(random_numbers()).bands(0, 0)]
    made = FittedParams(**numbers)
    return fitted_rotary(
        rotary, made, keys, jnp.asarray(POSITIONS), train_length=WINDOW, seq_len=LENGTH
    )


@pytest.fixture
def small_blocks(monkeypatch):
    # blocks that no border coincides with
    monkeypatch.setattr(
        BACKENDS["blockwise"], "attend_bands", functools.partial(banded_blockwise, block=16)
    )


@pytest.mark.parametrize("backend", ["xla", "blockwise"])
def test_attention_is_that_of_the_definition(backend, small_blocks):
    numbers, (q, k, v) = random_numbers(), random_inputs()
    segments = np.repeat(SEGMENTS, 2, axis=0)
    for layer in range(LAYERS):
        wanted = dense_attention(numbers, layer, q, k, v, POSITIONS, SEGMENTS)
        run = functools.partial(attention, backend=backend)
        found = run(on_host(numbers), layer, q, k, v, POSITIONS, segments)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "heads", "kv_heads"),
    [(1, 1, 1), (LAYERS, 1, 1), (1, HEADS, KV_HEADS), (1, HEADS, 1)],
)
def test_numbers_may_be_shared_by_layers_and_heads(layers, heads, kv_heads):
    numbers, (q, k, v) = random_numbers(layers, heads, kv_heads), random_inputs()
    segments = np.repeat(SEGMENTS, 2, axis=0)
    wanted = dense_attention(numbers, LAYER, q, k, v, POSITIONS, SEGMENTS)
    found = attention(on_host(numbers), LAYER, q, k, v, POSITIONS, segments, "xla")
    np.testing.assert_allclose(found, wanted, atol=1e-5)


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
    q, k, v = random_inputs(batch=1)
    near = {name: numbers[name].tolist() for name in ("near_inv_freq", "attention_factor")}
    map_ = parse({"type": "fitted", "train_length": WINDOW} | near)
    layers = RotaryLayers(GEOMETRY)
    rotary = layers.rotary(parse_scaling("none"), POSITIONS, LENGTH)
    rotary = with_map(rotary, map_, layers, POSITIONS, window=WINDOW, seq_len=LENGTH)
    found = attention(rotary, LAYER, q, k, v, POSITIONS, SEGMENTS, "xla")
    wanted = dense_attention(every, LAYER, q, k, v, POSITIONS, SEGMENTS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("backend", ["xla", "blockwise"])
def test_gradients_are_the_differences_of_the_definition(backend, small_blocks):
    """For every kind of number: along a random direction, in the layer and in the other one."""
    numbers, (q, k, v) = random_numbers(), random_inputs(batch=1)
    rng = np.random.default_rng(7)
    weights = rng.standard_normal(q.shape).astype(np.float32)

    @jax.jit
    def loss(numbers):
        found = attention(traced(numbers), LAYER, q, k, v, POSITIONS, SEGMENTS, backend)
        return (found * weights).sum()

    float32 = {name: jnp.asarray(x, jnp.float32) for name, x in numbers.items()}
    gradient = jax.grad(loss)(float32)
    for name, x in numbers.items():
        direction = rng.standard_normal(x.shape)
        step, values = 1e-5, []
        for sign in (1, -1):
            moved = numbers | {name: x + sign * step * direction}
            out = dense_attention(moved, LAYER, q, k, v, POSITIONS, SEGMENTS)
            values.append((out * weights).sum())
        wanted = (values[0] - values[1]) / (2 * step)
        found = np.asarray(gradient[name], np.float64)
        assert (found * direction).sum() == pytest.approx(wanted, rel=1e-3), name
        layer_axis = int(name.startswith("far_"))
        assert not np.moveaxis(found, layer_axis, 0)[0].any(), "of the other layer"


def test_a_traced_map_is_the_one_on_the_host():
    numbers, (q, k, v) = random_numbers(), random_inputs(batch=1)
    float32 = {name: jnp.asarray(x, jnp.float32) for name, x in numbers.items()}
    run = functools.partial(attention, backend="xla")
    arguments = LAYER, q, k, v, POSITIONS, SEGMENTS
    np.testing.assert_allclose(
        run(traced(float32), *arguments), run(on_host(numbers), *arguments), atol=2e-6
    )


def test_the_bias_beyond_its_last_knot_and_at_short_lengths_golden():
    numbers = {"bias": np.array([[[1.0, 3.0]]])} | {
        "far_inv_freq": np.zeros((1, 1, 1, PAIRS)),
        "far_phase": np.zeros((1, 1, 1, PAIRS)),
    }
    keys = [band.mask for band in as_map(random_numbers()).bands(0, 0)]
    for length, wanted in (
        (8, [0] * 8),
        (14, [*[0] * 9, 1, *(1 + 2 * np.log2(np.arange(10, 14) / 9))]),
    ):
        positions = np.arange(length, dtype=np.int32)[None]
        rotary = RotaryLayers(GEOMETRY).rotary(parse_scaling("none"), positions, length)
        made = FittedParams(**numbers)
        found = fitted_rotary(
            rotary, made, keys[:2], positions, train_length=WINDOW, seq_len=length
        ).bias
        np.testing.assert_allclose(found[0, 0, 0], np.array(wanted, float), rtol=1e-6)
    positions = np.arange(200, dtype=np.int32)[None]
    rotary = RotaryLayers(GEOMETRY).rotary(parse_scaling("none"), positions, 200)
    found = fitted_rotary(
        rotary, FittedParams(**numbers), keys[:2], positions, train_length=WINDOW, seq_len=200
    ).bias
    assert found.shape[-1] == 19, "distances up to the last knot"
    assert found[0, 0, 0, -1] == 3


REFUSED = {
    "bands": ({"far_phase": np.zeros((2, 1, 1, PAIRS))}, "far_phase: 2 bands for 3 borders"),
    "order": ({"borders": [9, 41, 20]}, "borders: [9, 41, 20] must be ascending, from 1 up"),
    "zero": ({"borders": [0, 20, 41]}, "borders: [0, 20, 41] must be ascending, from 1 up"),
    "one": ({"far_phase": None}, "far_inv_freq, far_phase: give both or neither"),
    "scale": ({"scale_p": None}, "scale_s, scale_p: give both or neither"),
    "ragged": ({"bias": [[[1.0], [1.0, 2.0]]]}, "bias: its lists have different lengths"),
}


@pytest.mark.parametrize(("change", "says"), REFUSED.values(), ids=REFUSED)
def test_numbers_that_do_not_belong_together_are_refused(change, says):
    lists = {name: x.tolist() for name, x in random_numbers().items()}
    change = {name: x.tolist() if hasattr(x, "tolist") else x for name, x in change.items()}
    settings = {"type": "fitted", "train_length": WINDOW, "borders": list(BORDERS)}
    with pytest.raises(ValidationError) as caught:
        parse(settings | lists | change)
    assert caught.value.errors()[0]["msg"].removeprefix("Value error, ") == says


def test_numbers_of_another_model_are_refused():
    map_ = as_map(random_numbers())
    map_.check_layers(RotaryLayers(GEOMETRY, count=LAYERS))
    map_.check_heads(HEADS, KV_HEADS)
    refused = [
        (lambda: map_.check_layers(RotaryLayers(GEOMETRY, count=3)), "near_inv_freq: .* 2 layers"),
        (
            lambda: map_.check_layers(RotaryLayers(RotaryGeometry(16, 100.0, 24), count=2)),
            r"near_inv_freq: .* 4 pairs, and the model rotates 8 \(rotary_dim 16\)",
        ),
        (
            lambda: map_.check_layers(RotaryLayers(RotaryGeometry(8, 100.0, 32), count=2)),
            "train_length: .* 24 tokens, not 32",
        ),
        (lambda: map_.check_heads(HEADS, 4), "near_inv_freq: .* 2 heads, and the model has 4"),
        (lambda: map_.check_heads(8, KV_HEADS), "far_phase: .* 4 heads, and the model has 8"),
    ]
    for check, says in refused:
        with pytest.raises(ValueError, match=says):
            check()
