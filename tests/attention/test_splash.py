"""The TPU kernel, run by Pallas's interpreter, against float64."""

import jax
import numpy as np
import pytest

from rope_jax.attention.splash import Splash, _block_sizes
from rope_jax.positions.mask import BandMask
from tests.attention.reference import attention, inputs, seen_keys

splash = Splash(interpret=True)


@pytest.fixture(autouse=True)
def implicit_promotion():
    """The kernel itself relies on it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize(
    ("queries", "keys", "window", "documents"),
    [
        (40, 600, 100, True),
        (1, 1024, 10, False),  # 127 rows of padding, too far from the last key to see it
        pytest.param(600, 600, 100, True, marks=pytest.mark.slow),
    ],
)
def test_values_and_gradients_match_float64(queries, keys, window, documents):
    *arrays, dout, ids = inputs(queries, keys, value_width=16)
    ids = ids if documents else None

    @jax.jit
    def value_and_gradients(q, k, v, ids):
        out, pull_back = jax.vjp(lambda q, k, v: splash.attend(q, k, v, ids, window), q, k, v)
        return out, *pull_back(dout)

    seen = seen_keys(queries, keys, 2, ids, BandMask(beyond=window))
    found, wanted = value_and_gradients(*arrays, ids), attention(*arrays, dout, seen)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_blocks_grow_with_the_window_so_that_their_table_fits():
    # 3 bytes for every pair of blocks, in 2^20 bytes
    for devices, longest in ((1, 2**19), (4, 2**20), (16, 2**21)):
        sizes = [_block_sizes(n // devices, n, devices > 1) for n in (2**17, longest)]
        assert sizes[0].block_q == sizes[0].block_kv == 512
        assert longest**2 / devices / sizes[1].block_q / sizes[1].block_kv * 3 < 2**20
