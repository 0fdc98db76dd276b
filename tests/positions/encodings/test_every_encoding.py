"""What holds for every position encoding: blocks, causality, gradients, translation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.positions.encodings import ENCODINGS
from tests.positions.encodings.dense import (
    KV_HEADS,
    SETTINGS,
    SIZES,
    Layer,
    causal,
    made,
    normal,
    random_qkv,
)

pytestmark = pytest.mark.usefixtures("compiled_quickly")

S = 40
EVERY = pytest.mark.parametrize("name", list(SETTINGS))


def window(length, offset=0):
    return jnp.arange(offset, offset + length, dtype=jnp.int32)[None]


def output(encoding, parameters, x, block=None):
    """Return an attention layer's output [B, N, S, H] for embeddings x [B, S, D]."""
    width = SIZES.head_dim
    positions = window(x.shape[1])
    x = encoding.embed(parameters, x, positions)
    q, k, v = (
        (x @ normal(n, x.shape[-1], count * width)).reshape(*x.shape[:2], count, width) * 0.2
        for n, count in enumerate((SIZES.heads, KV_HEADS, KV_HEADS))
    )
    return Layer(encoding, parameters, positions, width).attend(q, k, v, block)


def test_all_are_tested():
    assert set(SETTINGS) == set(ENCODINGS)


@EVERY
def test_initial_parameters_have_the_shapes_that_are_counted(name):
    encoding, parameters = made(name)
    assert {n: p.shape for n, p in parameters.items()} == encoding.parameter_shapes(SIZES)
    assert all(p.dtype == jnp.float32 for p in parameters.values())
    assert sum(p.size for p in parameters.values()) == encoding.parameter_count(SIZES)


@EVERY
def test_scores_and_values_are_static_arguments_of_one_program(name):
    encoding, _ = made(name)
    again = type(encoding)(**encoding.model_dump())
    assert encoding.scores is again.scores
    assert encoding.values is again.values


@EVERY
def test_blocks_and_the_last_queries_alone_give_what_the_whole_window_gives(name):
    encoding, parameters = made(name)
    q, k, v = random_qkv(S)
    layer = Layer(encoding, parameters, window(S), SIZES.head_dim)
    logits, out = layer.logits(q, k), layer.attend(q, k, v)
    np.testing.assert_allclose(causal(layer.logits(q, k, block=7)), causal(logits), atol=2e-5)
    for block in (7, 16):
        np.testing.assert_allclose(layer.attend(q, k, v, block), out, atol=1e-5)
    last = Layer(encoding, parameters, window(S), SIZES.head_dim, last=6)
    np.testing.assert_allclose(last.attend(q[:, -6:], k, v), out[:, :, -6:], atol=1e-5)


@EVERY
def test_no_output_depends_on_later_tokens(name):
    encoding, parameters = made(name)
    x, token = normal(3, 1, S, SIZES.hidden_size), 22

    def at_token(x):
        return (output(encoding, parameters, x, block=16)[:, :, token] ** 2).sum()

    gradient = np.abs(np.asarray(jax.jit(jax.grad(at_token))(x))[0]).max(-1)
    assert (gradient[token + 1 :] == 0).all()
    assert (gradient[: token + 1] > 0).all()


@pytest.mark.parametrize("name", [name for name in SETTINGS if made(name)[1]])
def test_every_parameter_has_a_gradient_the_same_in_blocks(name):
    encoding, parameters = made(name)
    x = normal(4, 2, S, SIZES.hidden_size)

    def loss(parameters, block):
        return (output(encoding, parameters, x, block) ** 2).sum()

    whole, in_blocks = (
        jax.jit(jax.grad(loss), static_argnums=1)(parameters, block) for block in (None, 16)
    )
    for parameter, gradient in whole.items():
        np.testing.assert_allclose(gradient, in_blocks[parameter], atol=1e-3)
        assert np.isfinite(gradient).all(), parameter
        if name == "learned":
            gradient = gradient[:, :S]  # the other rows belong to no token
        if name == "fire" and gradient.ndim > 1:
            # A unit that is on everywhere adds its bias to all logits, which softmax ignores.
            units = bends if parameter == "hidden_bias" else is_on
            gradient = gradient[:, units(parameters)]
            assert gradient.size, parameter
        assert (np.asarray(gradient) != 0).all(), parameter


def is_on(parameters):
    """Return which hidden units of `fire` are above 0 at some ratio in [0, 1]."""
    return np.maximum(*at_both_ends(parameters)) > 0.05


def bends(parameters):
    """Return which hidden units of `fire` are above 0 at some ratios in [0, 1], but not at all."""
    return is_on(parameters) & (np.minimum(*at_both_ends(parameters)) < -0.05)


def at_both_ends(parameters):
    """Return the hidden units of `fire` before ReLU at the ratios 0 and 1."""
    kernel, bias = (np.asarray(parameters[f"hidden_{name}"][0]) for name in ("kernel", "bias"))
    return bias, kernel + bias


def shifted_logits(name, offset):
    """Return the logits of the last S tokens among themselves, `offset` tokens from the start."""
    encoding, parameters = made(name)
    q, k, _ = random_qkv(S)
    before = normal(5, 2, offset, KV_HEADS, SIZES.head_dim)
    layer = Layer(encoding, parameters, window(S + offset), SIZES.head_dim, last=S)
    return layer.logits(q, jnp.concatenate([before, k], axis=1))[..., offset:]


@EVERY
def test_logits_depend_on_distances_alone_except_in_fire(name):
    near, far = shifted_logits(name, 0), shifted_logits(name, 100)
    difference = np.abs(causal(near) - causal(far)).max()
    assert difference > 0.01 if name == "fire" else difference < 3e-5


@EVERY
def test_embeddings_depend_on_the_position_in_absolute_encodings_alone(name):
    encoding, parameters = made(name)
    x = normal(6, 2, S, SIZES.hidden_size)
    here, there = (encoding.embed(parameters, x, window(S, offset)) for offset in (0, 100))
    if name in ("sinusoidal", "learned"):
        assert np.abs(here - there).max() > 0.1
    else:
        assert (here == x).all()
        assert (there == x).all()


@EVERY
def test_bfloat16_stays_bfloat16(name):
    encoding, parameters = made(name)
    q, k, _ = (x.astype(jnp.bfloat16) for x in random_qkv(S))
    layer = Layer(encoding, parameters, window(S), SIZES.head_dim)
    exact = layer.logits(*random_qkv(S)[:2])
    turned = [
        turn(layer.numbers, x, layer.cos, layer.sin, "half")
        for turn, x in ((encoding.rotate_queries, q), (encoding.rotate_keys, k))
    ]
    assert all(x.dtype == jnp.bfloat16 for x in turned)
    q, k = layer.turned(q, k)
    index = jnp.arange(S)
    logits = encoding.scores(layer.numbers, q, k, index, index)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(causal(logits.reshape(exact.shape)), causal(exact), atol=0.1)
    x = normal(6, 2, S, SIZES.hidden_size).astype(jnp.bfloat16)
    assert encoding.embed(parameters, x, window(S)).dtype == jnp.bfloat16
