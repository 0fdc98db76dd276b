"""The loss against float64, in chunks and at once, and the memory it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.model.loss import token_nll, token_scores
from tests.programs import equations


def inputs(tokens, width, vocabulary):
    rng = np.random.default_rng(tokens)
    hidden = jnp.asarray(rng.standard_normal((tokens, width)), jnp.float32)
    kernel = jnp.asarray(rng.standard_normal((width, vocabulary)), jnp.float32)
    return hidden, kernel, jnp.asarray(rng.integers(0, vocabulary, tokens), jnp.int32)


@pytest.mark.parametrize("tokens", [1, 40, 43])
@pytest.mark.parametrize("most_logits", [1, 200, 10**6])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_loss_matches_float64(tokens, most_logits, softcap):
    hidden, kernel, targets = inputs(tokens, 8, 50)
    logits = np.float64(hidden) @ np.float64(kernel)
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    wanted = np.log(np.exp(logits).sum(1)) - logits[np.arange(tokens), targets]
    found = jax.jit(token_nll, static_argnums=(3, 4))(hidden, kernel, targets, most_logits, softcap)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradients_in_chunks_equal_those_of_the_plain_formula(softcap):
    hidden, kernel, targets = inputs(43, 8, 50)
    weights = np.random.default_rng(0).standard_normal(43).astype(np.float32)

    def plain(hidden, kernel):
        logits = hidden @ kernel
        if softcap is not None:
            logits = softcap * jnp.tanh(logits / softcap)
        nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], -1)[:, 0]
        return (nll * weights).sum()

    wanted = jax.jit(jax.grad(plain, argnums=(0, 1)))(hidden, kernel)
    for most_logits in (200, 10**6):

        def loss(hidden, kernel, most_logits=most_logits):
            return (token_nll(hidden, kernel, targets, most_logits, softcap) * weights).sum()

        found = jax.jit(jax.grad(loss, argnums=(0, 1)))(hidden, kernel)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_kernels_gradient_is_summed_in_float32_in_bfloat16_models():
    hidden, kernel, targets = inputs(4096, 8, 20)
    hidden = jnp.abs(hidden) + 1  # of one sign: a bfloat16 sum would stop growing at 256 times this

    def gradient(most_logits, dtype):
        def loss(kernel):
            return token_nll(hidden.astype(dtype), kernel, targets, most_logits).sum()

        return jax.jit(jax.grad(loss))(kernel.astype(dtype))

    found = gradient(20 * 8, jnp.bfloat16)
    assert found.dtype == jnp.bfloat16
    wanted = gradient(10**6, jnp.float32)
    error = np.abs(found.astype(jnp.float32) - wanted) / np.abs(wanted).max()
    assert error.max() < 0.005


def test_no_array_of_all_logits_exists_in_training():
    tokens, vocabulary, width = 32_768, 150_000, 16
    shapes = [
        jax.ShapeDtypeStruct((tokens, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((width, vocabulary), jnp.bfloat16),
        jax.ShapeDtypeStruct((tokens,), np.int32),
    ]

    def loss(hidden, kernel, targets):
        return token_nll(hidden, kernel, targets, softcap=30.0).sum()

    program = jax.make_jaxpr(jax.value_and_grad(loss, argnums=(0, 1)))(*shapes)
    sizes = [out.aval.size for equation in equations(program.jaxpr) for out in equation.outvars]
    assert vocabulary * width < max(sizes) <= 2**26  # the logits of one chunk


def test_the_gradient_of_a_frozen_kernel_takes_no_memory():
    # as in a fit, which differentiates by its own numbers alone
    width, vocabulary = 512, 65_536
    shapes = [
        jax.ShapeDtypeStruct((1024, width), np.float32),
        jax.ShapeDtypeStruct((width, vocabulary), np.float32),
        jax.ShapeDtypeStruct((1024,), np.int32),
    ]

    def bytes_of(argnums):
        def loss(hidden, kernel, targets):
            return token_nll(hidden, kernel, targets, most_logits=2**20).sum()

        compiled = jax.jit(jax.grad(loss, argnums=argnums)).lower(*shapes).compile()
        memory = compiled.memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    of_kernel = 4 * width * vocabulary
    assert bytes_of((0,)) < 0.5 * of_kernel < 0.5 * bytes_of((0, 1))


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


@pytest.mark.parametrize("most_logits", [1, 200, 10**6])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_scores_are_the_loss_and_the_first_choice(most_logits, softcap):
    hidden, kernel, targets = inputs(43, 8, 50)
    logits = np.asarray(hidden @ kernel)
    best = logits.argmax(1)
    targets = jnp.where(jnp.arange(43) % 2 == 0, jnp.asarray(best), targets)
    found = jax.jit(token_scores, static_argnums=(3, 4))(
        hidden, kernel, targets, most_logits, softcap
    )
    wanted = token_nll(hidden, kernel, targets, most_logits, softcap)
    np.testing.assert_allclose(found.nll, wanted, rtol=1e-6)
    np.testing.assert_array_equal(found.is_top1, best == np.asarray(targets))
    assert found.is_top1.dtype == bool
    assert 20 < found.is_top1.sum() < 30


def test_a_tie_is_no_first_choice():
    hidden, kernel = jnp.zeros((3, 4)), jnp.ones((4, 5))
    assert not token_scores(hidden, kernel, jnp.arange(3)).is_top1.any()
