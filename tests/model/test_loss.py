"""The loss against float64, in chunks and at once, and the memory that it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.model.loss import token_nll


def inputs(tokens, width, vocabulary):
    rng = np.random.default_rng(tokens)
    hidden = jnp.asarray(rng.standard_normal((tokens, width)), jnp.float32)
    kernel = jnp.asarray(rng.standard_normal((width, vocabulary)), jnp.float32)
    return hidden, kernel, jnp.asarray(rng.integers(0, vocabulary, tokens), jnp.int32)


@pytest.mark.parametrize("tokens", [1, 40, 43])
@pytest.mark.parametrize("most_logits", [1, 200, 10**6])
def test_against_float64(tokens, most_logits):
    hidden, kernel, targets = inputs(tokens, 8, 50)
    logits = np.float64(hidden) @ np.float64(kernel)
    wanted = np.log(np.exp(logits).sum(1)) - logits[np.arange(tokens), targets]
    found = jax.jit(token_nll, static_argnums=3)(hidden, kernel, targets, most_logits)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_gradients_in_chunks_equal_those_at_once():
    hidden, kernel, targets = inputs(43, 8, 50)
    weights = np.random.default_rng(0).standard_normal(43).astype(np.float32)

    def gradients(most_logits):
        def loss(hidden, kernel):
            return (token_nll(hidden, kernel, targets, most_logits) * weights).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(hidden, kernel)

    for chunked, at_once in zip(gradients(200), gradients(10**6), strict=True):
        np.testing.assert_allclose(chunked, at_once, atol=1e-5)


def test_not_all_logits_of_a_large_vocabulary_exist_at_once():
    # All logits of 32,768 tokens and 131,072 words would take 16 GiB.
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in [
            ((32_768, 16), np.float32),
            ((16, 131_072), np.float32),
            ((32_768,), np.int32),
        ]
    ]

    def memory(program):
        return jax.jit(program).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    assert memory(token_nll) < 2**30
    assert memory(jax.grad(lambda h, k, t: token_nll(h, k, t).sum(), argnums=(0, 1))) < 1.5 * 2**30
