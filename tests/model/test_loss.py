"""The loss against float64, in chunks and at once, and the memory it takes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.model.loss import token_nll, token_scores
from tests.programs import equations


def inputs(tokens, width=8, vocabulary=50):
    rng = np.random.default_rng(tokens)
    hidden, kernel = rng.standard_normal((tokens, width)), rng.standard_normal((width, vocabulary))
    targets = rng.integers(0, vocabulary, tokens).astype(np.int32)
    return hidden.astype(np.float32), kernel.astype(np.float32), targets


def reference(hidden, kernel, targets, softcap, weights):
    """Return the logits and NLL in float64, and the gradients of its weighted sum."""
    hidden, kernel = np.float64(hidden), np.float64(kernel)
    logits, slope = hidden @ kernel, 1.0
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
        slope = 1 - (logits / softcap) ** 2
    lse = np.log(np.exp(logits).sum(1))
    nll = lse - logits[np.arange(len(targets)), targets]
    is_target = np.arange(kernel.shape[1]) == targets[:, None]
    dlogits = (np.exp(logits - lse[:, None]) - is_target) * slope * weights[:, None]
    return logits, nll, dlogits @ kernel.T, hidden.T @ dlogits


@functools.partial(jax.jit, static_argnums=(4, 5))
def nll_and_gradients(hidden, kernel, targets, weights, max_logits, softcap):
    def nll(hidden, kernel):
        return token_nll(hidden, kernel, targets, max_logits, softcap)

    value, pull_back = jax.vjp(nll, hidden, kernel)
    return value, *pull_back(weights)


@pytest.mark.parametrize(
    ("tokens", "max_logits", "softcap"),
    [(1, 1, None), (43, 1, 2.0), (40, 200, None), (43, 200, 2.0), (43, 10**6, None),
     (43, 10**6, 2.0)],
)  # fmt: skip
def test_the_loss_and_its_gradients_match_float64(tokens, max_logits, softcap):
    weights = np.random.default_rng(0).standard_normal(tokens).astype(np.float32)
    arrays = inputs(tokens)
    _, *wanted = reference(*arrays, softcap, weights)
    found = nll_and_gradients(*arrays, weights, max_logits, softcap)
    assert found[0].dtype == jnp.float32
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(("max_logits", "softcap"), [(200, 2.0), (10**6, None)])
def test_scores_are_the_loss_and_the_first_choice(max_logits, softcap):
    hidden, kernel, targets = inputs(43)
    logits, *_ = reference(hidden, kernel, targets, None, np.ones(43))
    best = logits.argmax(1)
    targets = np.where(np.arange(43) % 2 == 0, best, targets).astype(np.int32)
    score = jax.jit(token_scores, static_argnums=(3, 4))
    found = score(hidden, kernel, targets, max_logits, softcap)
    _, wanted, *_ = reference(hidden, kernel, targets, softcap, np.ones(43))
    np.testing.assert_allclose(found.nll, wanted, atol=1e-5)
    np.testing.assert_array_equal(found.is_top1, best == targets)
    # a tie is no first choice
    assert not score(0 * hidden, kernel, targets, max_logits, softcap).is_top1.any()


def test_the_kernels_gradient_is_summed_in_float32_in_bfloat16_models():
    hidden, kernel, targets = inputs(4096, vocabulary=20)
    hidden = np.abs(hidden) + 1  # of one sign: a bfloat16 sum would stop growing at 256 times this
    weights = np.ones(4096, np.float32)
    halves = [x.astype(jnp.bfloat16) for x in (hidden, kernel)]
    _, _, found = nll_and_gradients(*halves, targets, weights, 20 * 8, None)
    assert found.dtype == jnp.bfloat16
    *_, wanted = reference(hidden, kernel, targets, None, weights)
    assert (np.abs(np.float64(found) - wanted) / np.abs(wanted).max()).max() < 0.005


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
            return token_nll(hidden, kernel, targets, max_logits=2**20).sum()

        compiled = jax.jit(jax.grad(loss, argnums=argnums)).lower(*shapes).compile()
        memory = compiled.memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    of_kernel = 4 * width * vocabulary
    assert bytes_of((0,)) < 0.5 * of_kernel < 0.5 * bytes_of((0, 1))
