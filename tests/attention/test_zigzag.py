"""Devices that share a window: each one's part of attention, and their gradients together.

Shapes: B batch, S length of the window, T = S/count, N heads, K key-value heads, H head dim.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import BACKENDS
from rope_jax.attention.backends.cudnn import Cudnn
from rope_jax.attention.blockwise import banded_blockwise
from rope_jax.attention.cpu import banded_cpu
from rope_jax.attention.dense import banded_dense
from rope_jax.attention.splash import splash_attention
from rope_jax.kernels.loading import load_kernels
from rope_jax.positions.interaction import Interaction, dot_product
from rope_jax.positions.mask import BandMask
from rope_jax.positions.zigzag import ZigZag, restored, tokens_of_parts

pytestmark = pytest.mark.usefixtures("compiled_quickly")

H = 8


def inputs(length):
    """Return q, k, v, a direction, and segments of about 20 tokens, different in every row."""
    rng = np.random.default_rng(length)
    shapes = [(2, length, n, H) for n in (4, 2, 2, 4)]
    q, k, v, direction = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes)
    segments = np.cumsum(rng.random((2, length)) < 0.05, axis=1)
    return q, k, v, direction, jnp.asarray(segments, jnp.int32)


@pytest.mark.parametrize("count", [2, 3])
def test_the_order_of_tokens_on_the_host_is_that_on_the_devices(count):
    window = jnp.arange(24)
    order = tokens_of_parts(24, count)
    for index in range(count):
        assert ZigZag(jnp.int32(index), count).own(window, 0).tolist() == order[index].tolist()
    assert restored(jnp.asarray(order.reshape(-1)), 0, count).tolist() == window.tolist()


def check_parts(attention, reference, length, count):
    """Compare values and gradients of every part with those of the whole window.

    attention(q, k, v, part), reference(q, k, v). Every device's q are its own tokens; the gradients
    of k and v are the sums of all devices'.
    """
    q, k, v, direction, _ = inputs(length)

    @jax.jit
    def of_part(index):
        part = ZigZag(index, count)
        own, towards = part.own(q, 1), part.own(direction, 1)
        out, pull_back = jax.vjp(lambda q, k, v: attention(q, k, v, part), own, k, v)
        return out, *pull_back(towards)

    out, pull_back = jax.vjp(reference, q, k, v)
    dq, *d_keys_and_values = pull_back(direction)
    parts = [of_part(jnp.int32(index)) for index in range(count)]
    for index, (found, found_dq, *_) in enumerate(parts):
        part = ZigZag(jnp.int32(index), count)
        np.testing.assert_allclose(found, part.own(out, 1), atol=2e-6)
        np.testing.assert_allclose(found_dq, part.own(dq, 1), atol=1e-5)
    for found, wanted in zip(
        zip(*parts, strict=True), (None, None, *d_keys_and_values), strict=True
    ):
        if wanted is not None:
            np.testing.assert_allclose(sum(found), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("count", "window", "segments"),
    [(2, None, False), (4, None, True), (2, 40, True), (4, 40, False), (4, 1, False)],
)
@pytest.mark.parametrize("name", ["xla", "blockwise"])
def test_parts_match_the_window(name, count, window, segments):
    attention = BACKENDS[name].attend
    if name == "blockwise":
        attention = functools.partial(BACKENDS["blockwise"].attend, block=10)
    ids = inputs(192)[-1] if segments else None
    check_parts(
        lambda q, k, v, part: attention(q, k, v, ids, window, part),
        lambda q, k, v: BACKENDS["xla"].attend(q, k, v, ids, window),
        192,
        count,
    )


BANDS = {
    "near and far": (BandMask(beyond=24), BandMask(nearest=24)),
    "sinks": (BandMask(beyond=24), BandMask(nearest=24, first=4)),
    "chunks": (
        BandMask(chunk=30, chunks_back=(0, 0)),
        BandMask(chunk=30, chunks_back=(1, None)),
    ),
}


def biased(slope, q, k, query_index, key_index):
    distance = (query_index[:, None] - key_index[None]).astype(jnp.float32)
    return jnp.einsum("bkgth,bksh->bkgts", q, k) - slope * distance[None, None, None]


@pytest.mark.parametrize("segments", [False, True], ids=["one document", "segments"])
@pytest.mark.parametrize("bands", BANDS.values(), ids=BANDS)
@pytest.mark.parametrize(
    ("attention", "scores"),
    [
        (banded_dense, biased),
        (functools.partial(banded_blockwise, block=10), biased),
        pytest.param(
            *(banded_cpu, dot_product),
            marks=pytest.mark.skipif(load_kernels() is None, reason="there is no C++ compiler"),
        ),
    ],
    ids=["whole", "blockwise", "cpu"],
)
def test_parts_of_several_bands_match_the_window(attention, scores, bands, segments):
    ids = inputs(192)[-1] if segments else None
    interaction, slope = Interaction(bands, scores), jnp.full((1,) * 5, 0.1)

    def of_bands(attention, q, k, v, *part):
        # bands that see the same keys differently
        queries = tuple(q * np.float32(1 - 0.3 * band) for band in range(len(bands)))
        return attention(queries, (k,) * len(bands), v, ids, interaction, slope, *part)

    check_parts(
        functools.partial(of_bands, attention), functools.partial(of_bands, banded_dense), 192, 2
    )


@pytest.mark.parametrize(
    ("length", "count", "window", "segments"),
    [
        (512, 2, None, False),
        pytest.param(1000, 2, 100, True, marks=pytest.mark.slow),  # chunks that are no whole blocks
        pytest.param(1024, 4, None, True, marks=pytest.mark.slow),
        pytest.param(1024, 4, 200, False, marks=pytest.mark.slow),
    ],
)
def test_parts_of_interpreted_splash_match_the_window(length, count, window, segments):
    ids = inputs(length)[-1] if segments else None
    # The kernel itself relies on implicit promotion.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        check_parts(
            lambda q, k, v, part: splash_attention(q, k, v, ids, window, part, interpret=True),
            lambda q, k, v: BACKENDS["xla"].attend(q, k, v, ids, window),
            length,
            count,
        )


def test_every_part_computes_the_same_number_of_blocks():
    # 16 blocks of 16 tokens: 136 pairs on or below the diagonal, 34 for each of four devices.
    q, k, v, _, _ = inputs(256)

    def blocks_of(index):
        computed = []

        def recorded(numbers, q, k, query_index, key_index):
            jax.debug.callback(
                lambda i, j: computed.append((int(i) // 16, int(j) // 16)),
                query_index[0],
                key_index[0],
            )
            return jnp.einsum("bkgth,bksh->bkgts", q, k)

        part = ZigZag(jnp.int32(index), 4)
        interaction = Interaction(scores=recorded)
        out = banded_blockwise((part.own(q, 1),), (k,), v, None, interaction, {}, part, block=16)
        jax.block_until_ready(out)
        jax.effects_barrier()
        return computed

    found = [blocks_of(index) for index in range(4)]
    assert [len(pairs) for pairs in found] == [34] * 4
    assert sorted(pair for pairs in found for pair in pairs) == [
        (i, j) for i in range(16) for j in range(i + 1)
    ]


def test_cudnn_refuses_a_part():
    q, k, v, *_ = inputs(16)
    with pytest.raises(ValueError, match="cudnn cannot split a window over devices"):
        Cudnn().attend(q, k, v, part=ZigZag(jnp.int32(0), 2))
