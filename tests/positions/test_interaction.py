"""Tables by distance, spread over blocks of queries and keys; FIRE's network."""

import jax
import numpy as np
import pytest

from rope_jax.positions.encodings.fire import mlp
from rope_jax.positions.interaction import Indices, add_by_distance, sum_by_distance

T, S, C = 5, 7, 6
# first query − first key: all keys later, some later, next to each other, across the table's end
# (the last key is 4, then 5 tokens before the first query), all keys far
OFFSETS = [-9, -3, 0, 4, 6, 10, 11, 12, 40]


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_mlp_and_its_gradients():
    shapes = (2, 6, 9), (32,), (32,), (32, 3), (2, 3, 6, 9)
    rng = np.random.default_rng(0)
    *arguments, dout = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    x, kernel, shift, outputs = (np.float64(argument) for argument in arguments)
    before = x[..., None] * kernel + shift
    hidden = np.maximum(before, 0)
    dbefore = np.einsum("bnts,wn->btsw", dout, outputs) * (before > 0)
    wanted = (
        dbefore @ kernel,
        np.einsum("btsw,bts->w", dbefore, x),
        dbefore.sum((0, 1, 2)),
        np.einsum("btsw,bnts->wn", hidden, dout),
    )

    @jax.jit
    def both(dout, *arguments):
        out, vjp = jax.vjp(mlp, *arguments)
        return out, vjp(dout)

    out, found = both(dout, *arguments)
    np.testing.assert_allclose(out, np.einsum("btsw,wn->bnts", hidden, outputs), atol=2e-5)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def block(offset):
    start = 100 if offset > 0 else -3  # below 0 is padding
    return Indices(np.int32(start + offset + np.arange(T)), np.int32(start + np.arange(S)))


@pytest.mark.parametrize("rows", [1, T])
def test_add_by_distance(rows):
    logits, table = normal(2, 3, T, S), normal(1, 3, rows, C)
    add = jax.jit(add_by_distance)
    for offset in OFFSETS:
        wanted = logits.copy()
        for t, s in np.ndindex(T, S):
            wanted[..., t, s] += table[..., t % rows, min(max(offset + t - s, 0), C - 1)]
        np.testing.assert_array_equal(add(logits, table, block(offset)), wanted, err_msg=offset)


@pytest.mark.parametrize("length", [2, C, 20])
def test_sum_by_distance(length):
    weights = normal(2, 3, T, S)
    total = jax.jit(sum_by_distance, static_argnums=1)
    for offset in OFFSETS:
        wanted = np.zeros((2, 3, T, length))
        distance = offset + np.arange(T)[:, None] - np.arange(S)
        seen = weights * (distance >= 0)  # hidden keys have no weight
        for t, s in np.ndindex(T, S):
            wanted[..., t, np.clip(distance[t, s], 0, length - 1)] += seen[..., t, s]
        found = total(seen, length, block(offset))
        np.testing.assert_allclose(found, wanted, atol=1e-6, err_msg=offset)
