"""Tables by distance, spread over blocks and collected from them, against loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.positions.interaction import add_by_distance, sum_by_distance

pytestmark = pytest.mark.usefixtures("compiled_quickly")

T, S, C = 5, 7, 6
# first query − first key: all keys later, some later, next to each other, across the table's end
# (the last key is 4, then 5 tokens before the first query), all keys far
OFFSETS = [-9, -3, 0, 4, 6, 10, 11, 12, 40]


def block(offset):
    start = 100 if offset > 0 else -3  # below 0 is padding
    return (
        jnp.asarray(start + offset + np.arange(T), jnp.int32),
        jnp.asarray(start + np.arange(S), jnp.int32),
    )


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("rows", [1, T])
def test_add_by_distance(offset, rows):
    logits, table = normal(2, 3, T, S), normal(1, 3, rows, C)
    wanted = logits.copy()
    for t in range(T):
        for s in range(S):
            distance = min(max(offset + t - s, 0), C - 1)
            wanted[..., t, s] += table[..., t % rows, distance]
    found = add_by_distance(jnp.asarray(logits), jnp.asarray(table), *block(offset))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("length", [2, C, 20])
@pytest.mark.parametrize("offset", OFFSETS)
def test_sum_by_distance(offset, length):
    weights = normal(2, 3, T, S)
    wanted = np.zeros((2, 3, T, length))
    for t in range(T):
        for s in range(S):
            if offset + t - s >= 0:
                wanted[..., t, min(offset + t - s, length - 1)] += weights[..., t, s]
    found = sum_by_distance(jnp.asarray(weights), length, *block(offset))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
