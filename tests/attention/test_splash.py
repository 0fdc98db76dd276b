"""The TPU kernel, run by Pallas's interpreter, matches `dense_attention`.

Shapes: B batch, T queries, S length of the window, N heads, K key-value heads, H head dim of
queries and keys, V that of values.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import BACKENDS
from rope_jax.attention.splash import _block_sizes, splash_attention

pytestmark = pytest.mark.usefixtures("compiled_quickly")


@pytest.fixture(autouse=True)
def implicit_promotion():
    """The kernel itself relies on it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def inputs(length, width_of_values=8):
    """Return q, k, v, a direction, and segments of about 50 tokens, different in every row."""
    rng = np.random.default_rng(length)
    shapes = [(2, length, 4, 8), (2, length, 2, 8)]
    shapes += [(2, length, n, width_of_values) for n in (2, 4)]
    q, k, v, direction = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes)
    segments = np.cumsum(rng.random((2, length)) < 0.02, axis=1)
    return q, k, v, direction, jnp.asarray(segments, jnp.int32)


@pytest.mark.parametrize(
    ("queries", "keys", "window", "segments"),
    [
        (130, 130, None, False),
        (40, 600, 100, True),
        (1, 1024, 10, False),  # 127 rows of padding, too far from the last key to see it
        (600, 600, 100, True),
    ],
)
def test_values_and_gradients_match_xla(queries, keys, window, segments):
    q, k, v, direction, ids = inputs(keys, width_of_values=16)
    q, direction = q[:, -queries:], direction[:, -queries:]

    def value_and_gradients(attention):
        def attend(q, k, v):
            return attention(q, k, v, ids if segments else None, window)

        out, pull_back = jax.vjp(attend, q, k, v)
        return out, *pull_back(direction)

    found = jax.jit(value_and_gradients, static_argnums=0)(
        functools.partial(splash_attention, interpret=True)
    )
    for a, b in zip(found, value_and_gradients(BACKENDS["xla"].attend), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_blocks_grow_with_the_window_so_that_their_table_fits():
    # 3 bytes for every pair of blocks, in 2^20 bytes
    for devices, longest in ((1, 2**19), (4, 2**20), (16, 2**21)):
        sizes = [_block_sizes(n // devices, n, devices > 1) for n in (2**17, longest)]
        assert sizes[0].block_q == sizes[0].block_kv == 512
        assert longest**2 / devices / sizes[1].block_q / sizes[1].block_kv * 3 < 2**20
