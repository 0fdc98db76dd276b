"""Devices that share a window: each one's part of attention, and their gradients together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.base import Inputs
from rope_jax.attention.blockwise import Blockwise
from rope_jax.attention.splash import Splash
from rope_jax.positions.interaction import Interaction, dot_product
from rope_jax.positions.mask import BandMask
from rope_jax.positions.zigzag import ZigZag, restored, tokens_of_parts
from tests.attention.reference import attention, inputs, seen_keys
from tests.compiled import needs_kernels


@pytest.mark.parametrize("count", [2, 3])
def test_the_order_of_tokens_on_the_host_is_that_on_the_devices(count):
    window = jnp.arange(24)
    order = tokens_of_parts(24, count)
    for index in range(count):
        assert ZigZag(jnp.int32(index), count).own(window, 0).tolist() == order[index].tolist()
    assert restored(jnp.asarray(order.reshape(-1)), 0, count).tolist() == window.tolist()


def check_parts(attend, length, count, wanted):
    """Compare values and gradients of every part with those of the whole window.

    attend(q, k, v, part). Every device's q are its own tokens; the gradients of k and v are the
    sums of all devices'.
    """
    *arrays, dout, _ = inputs(length, length)

    @jax.jit
    def of_part(index, q, k, v):
        part = ZigZag(index, count)
        out, pull_back = jax.vjp(lambda q, k, v: attend(q, k, v, part), part.own(q, 1), k, v)
        return out, *pull_back(part.own(dout, 1))

    order = tokens_of_parts(length, count)
    parts = [of_part(np.int32(index), *arrays) for index in range(count)]
    for own, (out, dq, *_) in zip(order, parts, strict=True):
        np.testing.assert_allclose(out, wanted[0][:, own], atol=1e-5)
        np.testing.assert_allclose(dq, wanted[1][:, own], atol=1e-5)
    for number in (2, 3):
        found = sum(np.asarray(part[number]) for part in parts)
        np.testing.assert_allclose(found, wanted[number], atol=1e-5)


def check_window(attend, length, count, window, documents):
    """attend(q, k, v, ids, window, part) of every part against the whole window's attention."""
    *arrays, ids = inputs(length, length)
    ids = jnp.asarray(ids) if documents else None
    wanted = attention(*arrays, seen_keys(length, length, 2, ids, BandMask(beyond=window)))
    check_parts(lambda q, k, v, part: attend(q, k, v, ids, window, part), length, count, wanted)


@pytest.mark.parametrize(("count", "window", "documents"), [(4, None, True), (2, 40, False)])
@pytest.mark.parametrize("backend", [BACKENDS["xla"], Blockwise(block=10)])
def test_parts_match_the_window(backend, count, window, documents):
    check_window(backend.attend, 192, count, window, documents)


@pytest.mark.parametrize(
    ("length", "count", "window", "documents"),
    [
        (512, 2, None, False),
        pytest.param(1000, 2, 100, True, marks=pytest.mark.slow),  # chunks that are no whole blocks
    ],
)
def test_parts_of_interpreted_splash_match_the_window(length, count, window, documents):
    # The kernel itself relies on implicit promotion.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        check_window(Splash(interpret=True).attend, length, count, window, documents)


SLOPE = 0.1


def biased(params, block):
    distance = (block.at.query[:, None] - block.at.key[None]).astype(jnp.float32)
    return dot_product(params, block) - params["slope"] * distance[None, None, None]


SINKS = BandMask(beyond=24), BandMask(nearest=24, first=4)
CHUNKS = BandMask(chunk=30, chunks_back=(0, 0)), BandMask(chunk=30, chunks_back=(1, None))
OWN_CHUNK = BandMask(beyond=20, own_chunk=30), BandMask(nearest=20, beyond=30, own_chunk=30)


@pytest.mark.parametrize(
    ("backend", "scores", "bands", "documents"),
    [
        (BACKENDS["xla"], biased, CHUNKS, True),
        (Blockwise(block=10), biased, SINKS, False),
        (Blockwise(block=10), biased, CHUNKS, True),
        (Blockwise(block=10), biased, OWN_CHUNK, True),
        pytest.param(BACKENDS["cpu"], dot_product, SINKS, True, marks=needs_kernels),
        pytest.param(BACKENDS["cpu"], dot_product, CHUNKS, True, marks=needs_kernels),
    ],
)
def test_parts_of_several_bands_match_the_window(backend, scores, bands, documents):
    *arrays, dout, ids = inputs(192, 192)
    ids = jnp.asarray(ids) if documents else None
    interaction = Interaction(bands, scores)
    params = {"slope": jnp.full((1,) * 5, SLOPE, jnp.float32)}
    sizes = (1.0, 0.7)  # bands that see the same keys differently

    def of_bands(q, k, v, part):
        queries = tuple(q * np.float32(size) for size in sizes)
        return backend.attend_bands(interaction, Inputs(queries, (k, k), v, ids, part, params))

    q, k, v = arrays
    distance = np.subtract.outer(np.arange(192), np.arange(192))
    bias = -SLOPE * distance if scores is biased else 0.0
    seen = tuple(seen_keys(192, 192, 2, ids, band) for band in bands)
    out, dq, dk, dv = attention(tuple(q * size for size in sizes), (k, k), v, dout, seen, bias)
    dq = sum(size * gradient for size, gradient in zip(sizes, dq, strict=True))
    check_parts(of_bands, 192, 2, (out, dq, sum(dk), dv))


def test_every_part_computes_the_same_number_of_blocks():
    # 16 blocks of 16 tokens: 136 pairs on or below the diagonal, 34 for each of four devices.
    q, k, v, *_ = map(jnp.asarray, inputs(256, 256))
    computed = []

    def recorded(params, block):
        record = lambda i, j: computed.append((int(i) // 16, int(j) // 16))  # noqa: E731
        jax.debug.callback(record, block.at.query[0], block.at.key[0])
        return dot_product(params, block)

    @jax.jit
    def of_part(index):
        part, interaction = ZigZag(index, 4), Interaction(scores=recorded)
        bands = Inputs((part.own(q, 1),), (k,), v, None, part)
        return Blockwise(block=16).attend_bands(interaction, bands)

    for index in range(4):
        jax.block_until_ready(of_part(np.int32(index)))
        jax.effects_barrier()
        assert len(computed) == 34 * (index + 1)
    assert sorted(computed) == [(i, j) for i in range(16) for j in range(i + 1)]


def test_cudnn_refuses_a_part():
    q, k, v, *_ = map(jnp.asarray, inputs(16, 16))
    with pytest.raises(ValueError, match="cudnn cannot split a window over devices"):
        BACKENDS["cudnn"].attend(q, k, v, part=ZigZag(jnp.int32(0), 2))
