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
from rope_jax.positions.mask import BandMask
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling

parse = TypeAdapter(AnyMap).validate_python
# 8 of 12 dimensions rotate; 91 is no multiple of the blocks' 16 tokens
LENGTH, QUERIES, WINDOW, GEOMETRY, WIDTH = 91, 70, 24, RotaryGeometry(8, 100.0, 24), 12
LAYERS, HEADS, KV_HEADS, PAIRS, BORDERS, KNOTS = 2, 4, 2, 4, (9, 20, 41), 3
LAYER = 1
# two documents in a window, the second of which begins inside a block
DOCUMENTS = (38, 53)
POSITIONS = np.concatenate([np.arange(n, dtype=np.int32) for n in DOCUMENTS])[None]
SEGMENTS = np.repeat(np.arange(2, dtype=np.int32), DOCUMENTS)[None]
RANDOM = np.random.default_rng(3)
Q, K, V = (
    RANDOM.standard_normal((1, *shape, WIDTH)).astype(np.float32)
    for shape in ((QUERIES, HEADS), (LENGTH, KV_HEADS), (LENGTH, KV_HEADS))
)


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


def dense_attention(numbers):
    """Attention as the docstring of `FittedMap` defines it, in float64 with whole matrices."""

    def own(x):  # the numbers of LAYER for each head, consecutive ones sharing a group's
        row = x[min(LAYER, len(x) - 1)]
        return np.repeat(row, HEADS // len(row), axis=0)

    q, k, v = (np.float64(x) for x in (Q, K, V))
    k, v = (np.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
    index = np.arange(LENGTH)
    distance = (index[:, None] - index)[-QUERIES:]
    seen = (distance >= 0) & (SEGMENTS[0][:, None] == SEGMENTS[0])[-QUERIES:]
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
        theta, phase, amplitude = own(numbers["near_inv_freq"]), 0.0, 1.0
        if band >= 0:
            theta = own(numbers["far_inv_freq"][band])
            phase = own(numbers["far_phase"][band])[:, None, None]
            amplitude = own(numbers["far_amplitude"][band])[:, None, None]
        angle = theta[:, None, None] * distance[..., None] + phase
        turned = (products * np.exp(1j * angle)).real * amplitude
        inside = (distance >= nearest) & (distance < beyond)
        logits = logits + np.where(inside, turned.sum(-1) * m**2, 0)
    ratio = np.maximum(1, np.log(POSITIONS[0, -QUERIES:] + 1) / np.log(WINDOW))
    scale = own(numbers["scale_s"])[:, None] * ratio ** own(numbers["scale_p"])[:, None]
    logits = logits * scale[..., None] / np.sqrt(WIDTH)
    octaves = np.log2(np.maximum(distance, BORDERS[0]) / BORDERS[0])
    for head in range(HEADS):
        bias = numbers["bias"][min(LAYER, len(numbers["bias"]) - 1), head]
        # linear between two knots in ln d, which rounding to whole distances does not change
        added = np.interp(octaves, np.arange(KNOTS), bias)
        logits[:, head] += np.where(distance >= BORDERS[0], added, 0)
    logits = np.where(seen, logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhts,bshc->bthc", weights, v)


def attention(rotary, backend):
    """Return attention as a layer computes it, from the model's argument."""
    of_layer = lambda leaf: leaf[min(LAYER, len(leaf) - 1)]  # noqa: E731
    positions, segments, q, k, v = map(jnp.asarray, (POSITIONS, SEGMENTS, Q, K, V))
    every = jax.tree.map(of_layer, rotations(rotary, positions))
    bias = None if rotary.bias is None else of_layer(jnp.asarray(rotary.bias))
    inputs = LayerInputs(every, jnp.asarray(rotary.query_scale)[0], {}, segments, bias)
    kind = LayerKind(masks=band_masks(rotary))
    return attend(q, k, v, inputs, kind, backend=backend, encoding=RoPE(), layout="half")


compiled = jax.jit(attention, static_argnames="backend")


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


@pytest.mark.parametrize("backend", ["xla", "blockwise"])
def test_attention_and_its_gradients_are_those_of_the_definition(backend, monkeypatch):
    """Gradients of every kind of number: along a random direction, and in the other layer."""
    # blocks that no border coincides with
    monkeypatch.setattr(
        BACKENDS["blockwise"], "attend_bands", functools.partial(banded_blockwise, block=16)
    )
    numbers, rng = random_numbers(), np.random.default_rng(7)
    weights = rng.standard_normal(Q.shape).astype(np.float32)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def gradient_and_output(numbers):
        found = attention(from_params(numbers, jnp.asarray(POSITIONS)), backend)
        return (found * weights).sum(), found

    gradient, found = gradient_and_output({name: np.float32(x) for name, x in numbers.items()})
    np.testing.assert_allclose(found, dense_attention(numbers), atol=1e-5)
    for name, x in numbers.items():
        direction = rng.standard_normal(x.shape)
        step = 1e-5 * direction
        high, low = (dense_attention(numbers | {name: y}) for y in (x + step, x - step))
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


@pytest.mark.parametrize(("layers", "heads", "kv_heads"), [(LAYERS, 1, 1), (1, HEADS, 1)])
def test_numbers_may_be_shared_by_layers_and_heads(layers, heads, kv_heads):
    numbers = random_numbers(layers, heads, kv_heads)
    found = compiled(on_host(as_map(numbers)), backend="xla")
    np.testing.assert_allclose(found, dense_attention(numbers), atol=1e-5)


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
    found = compiled(on_host(as_map(near, borders=())), backend="xla")
    np.testing.assert_allclose(found, dense_attention(every), atol=1e-5)


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


REFUSED = {
    "bands": ({"far_phase": np.zeros((2, 1, 1, PAIRS))}, "far_phase: 2 bands for 3 borders"),
    "order": ({"borders": [9, 41, 20]}, "borders: [9, 41, 20] must be ascending"),
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
