"""The gated delta rule by chunks is the rule token by token, in float64, as are its gradients.

Shapes: B batch, S tokens, K heads of queries and keys, N of values, H and V their widths.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.delta import gated_delta_rule, short_convolution
from tests.attention.test_linear import DOCUMENTS
from tests.model import reference

B, S, K, N, H, V = 2, 80, 2, 4, 8, 6
EMPTY = jnp.zeros((B, K, N // K, H, V)), jnp.full(B, -1)


def inputs(decay=1.0, alike=False):
    """Return q, k, v, log_decay, beta and a cotangent. alike: keys are nearly the same."""
    rng = np.random.default_rng(0)
    shapes = [(B, S, K, H), (B, S, K, H), (B, S, N, V), (B, S, N), (B, S, N), (B, S, N, V)]
    q, k, v, log_decay, beta, dout = (rng.standard_normal(shape) for shape in shapes)
    if alike:
        k = k * 0.01 + rng.standard_normal(H)
    arrays = q, k, v, -np.abs(log_decay) * decay, 1 / (1 + np.exp(-3 * beta)), dout
    return [np.float32(x) for x in arrays]


@functools.partial(jax.jit, static_argnums=0)
def by_chunks(chunk, segment_ids, dout, *arrays):
    """Return the output, the memory, and the gradients by all arrays."""

    def read(*arrays):
        out, memory = gated_delta_rule(*arrays, segment_ids, *EMPTY, chunk=chunk)
        return out, memory.reshape(B, N, H, V)

    (out, memory), pull_back = jax.vjp(read, *arrays)
    return out, memory, *pull_back((dout, jnp.ones_like(memory)))


@jax.jit
def by_tokens(segment_ids, dout, *arrays):
    """Return the same, one token after the other, in the arrays' dtype."""

    def read(q, k, v, log_decay, beta):
        q, k = (jnp.repeat(x, N // K, axis=2) for x in (q, k))
        q, k = (x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
        goes_on = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1] - 1) == 0
        kept = jnp.where(goes_on[..., None], jnp.exp(log_decay), 0)

        def step(memory, token):
            q, k, v, kept, beta = token
            memory = memory * kept[..., None, None]
            change = (v - jnp.einsum("bnhv,bnh->bnv", memory, k)) * beta[..., None]
            memory = memory + k[..., None] * change[:, :, None]
            return memory, jnp.einsum("bnhv,bnh->bnv", memory, q)

        tokens = tuple(x.swapaxes(0, 1) for x in (q / np.sqrt(H), k, v, kept, beta))
        memory, out = jax.lax.scan(step, jnp.zeros((B, N, H, V), q.dtype), tokens)
        return out.swapaxes(0, 1), memory

    (out, memory), pull_back = jax.vjp(read, *arrays)
    return out, memory, *pull_back((dout, jnp.ones_like(memory)))


@pytest.mark.parametrize(
    ("documents", "chunk", "decay", "alike"),
    [
        (None, 16, 0.1, False),
        (DOCUMENTS, 16, 0.01, True),  # the inverse of a chunk's system is as large as it may be
        (DOCUMENTS, 1000, 30.0, False),  # products of decays underflow
        (DOCUMENTS, 1, 1.0, False),
        (None, 33, 1e-4, True),  # the last chunk is padded
    ],
)
def test_values_and_gradients_match_float64(documents, chunk, decay, alike):
    *arrays, dout = inputs(decay, alike)
    documents = np.zeros((B, S), np.int32) if documents is None else documents
    found = by_chunks(chunk, documents, dout, *arrays)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        wanted = by_tokens(documents, *(np.float64(x) for x in (dout, *arrays)))
    for a, b in zip(*jax.device_get((found, wanted)), strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a / scale, b / scale, atol=5e-6)


def test_what_was_read_in_pieces_is_what_is_read_at_once():
    *arrays, _ = map(jnp.asarray, inputs())
    documents = jnp.asarray(DOCUMENTS)
    whole, memory = gated_delta_rule(*arrays, documents, *EMPTY)
    outs, (read, document) = [], EMPTY
    for piece in map(lambda ends: slice(*ends), [(0, 1), (1, 3), (3, 45), (45, 79), (79, 80)]):
        own = documents[:, piece]
        out, read = gated_delta_rule(*(a[:, piece] for a in arrays), own, read, document)
        outs, document = [*outs, out], own[:, -1]
    np.testing.assert_allclose(np.concatenate(outs, 1), whole, atol=1e-6)
    np.testing.assert_allclose(read, memory, atol=1e-6)


def test_the_convolution_is_that_of_each_document():
    rng = np.random.default_rng(1)
    x, kernel = (rng.standard_normal(shape) for shape in ((B, S, V), (4, V)))
    before = jnp.zeros((B, 3, V)), jnp.full((B, 3), -1)
    inputs, documents = map(
        functools.partial(jnp.concatenate, axis=1),
        zip(before, (jnp.float32(x), jnp.asarray(DOCUMENTS)), strict=True),
    )
    wanted = reference.convolved(x, kernel, DOCUMENTS)
    np.testing.assert_allclose(
        short_convolution(inputs, documents, jnp.float32(kernel)), wanted, atol=1e-5
    )


def test_no_gradient_crosses_into_another_document():
    *arrays, dout = inputs()
    for row, own in ((0, 69), (1, 30), (1, 79)):
        picked = np.zeros_like(dout)
        picked[row, own] = dout[row, own]

        def total(*arrays, picked=picked):
            return (gated_delta_rule(*arrays, jnp.asarray(DOCUMENTS), *EMPTY)[0] * picked).sum()

        for gradient in jax.jit(jax.grad(total, (1, 2, 4)))(*arrays):
            seen = (np.asarray(gradient) != 0).reshape(B, S, -1).any(-1)
            wanted = (np.arange(S) <= own) & (DOCUMENTS[row, own] == DOCUMENTS)
            wanted[1 - row] = False
            np.testing.assert_array_equal(seen, wanted)


def test_memory_is_linear_in_the_length():
    def loss(*arrays):
        empty = jnp.zeros((1, 1, 2, H, V)), jnp.full(1, -1)
        return jnp.square(gated_delta_rule(*arrays, *empty)[0]).sum()

    def bytes_used(length):
        shapes = [(1, length, *rest) for rest in ((1, H), (1, H), (2, V), (2,), (2,))]
        floats = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
        documents = jax.ShapeDtypeStruct((1, length), np.int32)
        program = jax.jit(jax.grad(loss, (0, 1, 2, 3, 4))).lower(*floats, documents).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert bytes_used(8192) < 2.2 * bytes_used(4096)
