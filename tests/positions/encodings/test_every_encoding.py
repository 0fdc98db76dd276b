"""What holds for every position encoding: blocks, causality, gradients, dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.positions.encodings import ENCODINGS
from tests.positions.encodings.dense import (
    KV_HEADS,
    POSITIONS,
    SETTINGS,
    SIZES,
    S,
    attend,
    layer_logits,
    made,
    normal,
    random_qkv,
)

EVERY = pytest.mark.parametrize("name", SETTINGS)
# These have scores of their own. The others change embeddings or rotate, or share KERPLE's scores.
OWN_SCORES = ("shaw", "alibi", "kerple", "fire", "xpos")
TOKEN = 13


def test_all_are_tested():
    assert set(SETTINGS) == set(ENCODINGS)


@EVERY
def test_parameters_are_as_counted_and_functions_are_the_same_at_every_call(name):
    encoding, parameters = made(name)
    assert {n: p.shape for n, p in parameters.items()} == encoding.parameter_shapes(SIZES)
    assert all(p.dtype == jnp.float32 for p in parameters.values())
    again = type(encoding)(**encoding.model_dump())
    assert encoding.scores is again.scores
    assert encoding.values is again.values


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in OWN_SCORES else pytest.mark.slow) for n in SETTINGS],
)
def test_blocks_causality_and_gradients(name):
    encoding, parameters = made(name)
    x = normal(4, 2, S, SIZES.hidden_size)

    def output(parameters, x, backend):
        x = encoding.embed(parameters, x, POSITIONS)
        q, k, v = (
            (x @ normal(n, x.shape[-1], count * 8)).reshape(2, S, count, 8) * np.float32(0.1)
            for n, count in enumerate((SIZES.heads, KV_HEADS, KV_HEADS))
        )
        return attend(encoding, parameters, q, k, v, backend)

    @jax.jit
    def program(parameters, x):
        whole, whole_vjp = jax.vjp(lambda p: output(p, x, "xla"), parameters)
        blocks, blocks_vjp = jax.vjp(lambda *args: output(*args, "blockwise"), parameters, x)
        at_token = jnp.zeros_like(whole).at[:, TOKEN].set(whole[:, TOKEN])
        of_token = blocks_vjp(at_token)[1]
        return (whole, *whole_vjp(whole)), (blocks, blocks_vjp(whole)[0]), of_token

    (whole, gradients), (blocks, gradients_in_blocks), of_token = program(parameters, x)
    np.testing.assert_allclose(blocks, whole, atol=1e-5)
    by_position = np.abs(of_token).max(axis=(0, 2))
    assert (by_position[TOKEN + 1 :] == 0).all()
    assert (by_position[: TOKEN + 1] > 0).all()
    for parameter, gradient in gradients.items():
        np.testing.assert_allclose(gradients_in_blocks[parameter], gradient, atol=1e-3)
        if name == "learned":
            gradient = gradient[:, :S]  # the other rows belong to no token
        if name == "fire" and gradient.ndim > 1:
            # A unit that is on everywhere adds its bias to all logits, which softmax ignores.
            kernel, bias = (np.asarray(parameters[f"hidden_{x}"][0]) for x in ("kernel", "bias"))
            used = np.maximum(bias, kernel + bias) > 0.05
            if parameter == "hidden_bias":
                used &= np.minimum(bias, kernel + bias) < -0.05
            assert used.any()
            gradient = gradient[:, used]
        assert np.isfinite(gradient).all()
        assert (np.asarray(gradient) != 0).all(), parameter


@EVERY
def test_bfloat16_stays_bfloat16_and_logits_are_float32(name):
    encoding, parameters = made(name)
    q, k, _ = (jnp.bfloat16(x) for x in random_qkv(S))

    def dtypes(parameters, q, k):
        params = {n: x[0] for n, x in encoding.layer_params(parameters, POSITIONS, 8).items()}
        cos = jnp.ones((1, S, 1, encoding.rotary_dim(8) // 2))
        turned = [f(params, x, cos, cos, "half") for f, x in
                  ((encoding.rotate_queries, q), (encoding.rotate_keys, k))]  # fmt: skip
        embedded = encoding.embed(parameters, jnp.ones((1, S, 24), jnp.bfloat16), POSITIONS)
        return *turned, embedded, layer_logits(encoding, parameters, q, k, POSITIONS)

    *low, logits = jax.eval_shape(dtypes, parameters, q, k)
    assert all(x.dtype == jnp.bfloat16 for x in low)
    assert logits.dtype == jnp.float32
