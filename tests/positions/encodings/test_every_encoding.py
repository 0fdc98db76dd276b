"""What holds for every position encoding: parameters and dtypes; losses are in tests/model."""

import jax
import jax.numpy as jnp
import pytest

from rope_jax.positions.encodings import ENCODINGS
from tests.positions.encodings.dense import (
    POSITIONS,
    SETTINGS,
    SIZES,
    S,
    layer_logits,
    made,
    random_qkv,
)

EVERY = pytest.mark.parametrize("name", SETTINGS)


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


@EVERY
def test_bfloat16_stays_bfloat16_and_logits_are_float32(name):
    encoding, parameters = made(name)
    q, k, _ = (jnp.bfloat16(x) for x in random_qkv(S))

    def dtypes(parameters, q, k):
        params = {n: x[0] for n, x in encoding.layer_params(parameters, POSITIONS, 8, 4).items()}
        cos = jnp.ones((1, S, 1, encoding.rotary_dim(8) // 2))
        turned = [f(params, x, cos, cos, "half") for f, x in
                  ((encoding.rotate_queries, q), (encoding.rotate_keys, k))]  # fmt: skip
        embedded = encoding.embed(parameters, jnp.ones((1, S, 24), jnp.bfloat16), POSITIONS)
        return *turned, embedded, layer_logits(encoding, parameters, q, k, POSITIONS)

    *low, logits = jax.eval_shape(dtypes, parameters, q, k)
    assert all(x.dtype == jnp.bfloat16 for x in low)
    assert logits.dtype == jnp.float32
