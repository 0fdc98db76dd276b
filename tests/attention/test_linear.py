"""Linear attention matches whole matrices in float64; gradients show which keys are seen.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim, V dimensions
of a value; pairs: H/2.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.linear import LinearAttention
from rope_jax.rope import rotate

N, K, H, V = 4, 2, 8, 6
CHUNK = 16
# Of 80 tokens in 5 chunks of 16: row 0 has borders in mid-chunk and a document over 5 chunks; row 1
# has a border between chunks, one before a chunk's last token, two in one chunk, and one before the
# last token.
BORDERS = (5, 70), (16, 31, 50, 53, 79)
DOCUMENTS = np.int32([7 + np.searchsorted(row, np.arange(80), side="right") for row in BORDERS])


def inputs(queries, keys):
    """Return q, k, v, cos and sin of positions that begin at 0 and 3, and a cotangent."""
    rng = np.random.default_rng(queries)
    shapes = [(2, queries, N, H), (2, keys, K, H), (2, keys, K, V), (2, queries, N, V)]
    q, k, v, dout = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    angles = np.add.outer([0, 3], np.arange(keys))[..., None] * 100.0 ** (
        -2 * np.arange(H // 2) / H
    )
    return q, k, v, np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32), dout


def by_chunks(q, k, v, cos, sin, segment_ids, chunk=CHUNK):
    def rotate_queries(x):
        return rotate(x, cos[:, -q.shape[1] :], sin[:, -q.shape[1] :])

    def rotate_keys(x):
        return rotate(x, cos, sin)

    features = LinearAttention(chunk).attend_features
    return features(q, k, v, rotate_queries, rotate_keys, segment_ids)[0]


def whole_matrices(q, k, v, cos, sin, segment_ids, chunk):
    """Eq. 19 of RoFormer by [T, S] matrices of weights; pairs (i, i + H/2) are complex numbers."""
    queries, keys, groups = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
    phi_q, phi_k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    turn = (cos + 1j * sin)[:, :, None]
    turned_k = (phi_k[..., : H // 2] + 1j * phi_k[..., H // 2 :]) * turn
    turned_q = (phi_q[..., : H // 2] + 1j * phi_q[..., H // 2 :]) * turn[:, -queries:]
    rotated = jnp.einsum("btnh,bsnh->bnts", turned_q, turned_k.conj()).real
    plain = jnp.einsum("btnh,bsnh->bnts", phi_q, phi_k)
    seen = np.tri(queries, keys, keys - queries, dtype=bool)[None]
    if segment_ids is not None:
        seen = seen & (segment_ids[:, -queries:, None] == segment_ids[:, None])
    seen = seen[:, None]
    weights = jnp.where(seen, rotated, 0) / jnp.where(seen, plain, 0).sum(-1, keepdims=True)
    return jnp.einsum("bnts,bsnv->btnv", weights, v)


@functools.partial(jax.jit, static_argnums=(0, 1))
def value_and_gradients(attention, chunk, q, k, v, cos, sin, dout, segment_ids=None):
    def attend(*arrays):
        return attention(*arrays, segment_ids, chunk)

    out, pull_back = jax.vjp(attend, q, k, v, cos, sin)
    return out, *pull_back(dout.astype(out.dtype))


@pytest.mark.parametrize(
    ("queries", "keys", "documents", "chunk", "shift"),
    [
        (17, 17, None, CHUNK, 0),  # cut into 9 and 8
        (73, 80, DOCUMENTS, CHUNK, 0),  # cut into 4 × 15 and 13
        (80, 80, DOCUMENTS, 1000, 0),
        (1, 80, DOCUMENTS, 1, 0),
        # elu(x) + 1 rounds to 0 below −17, and 0/0 would be NaN
        (73, 80, None, CHUNK, 18),
    ],
)
def test_values_and_gradients_match_float64(queries, keys, documents, chunk, shift):
    """Also where q or k is exactly 0, at which the pieces of φ meet."""
    q, k, *rest = inputs(queries, keys)
    q[0, queries // 4], k[:, 1] = 0, 0
    arrays = q - np.float32(shift), k - np.float32(shift), *rest
    found = value_and_gradients(by_chunks, chunk, *arrays, documents)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        wide = [np.float64(x) for x in arrays]
        wanted = value_and_gradients(whole_matrices, chunk, *wide, documents)
    for a, b, tolerance in zip(found, wanted, (2e-6, *[1e-5] * 5), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance * (1 + shift / 9), rtol=1e-5)


def test_gradients_are_exactly_zero_outside_the_seen_keys():
    *arrays, dout = inputs(73, 80)
    before = 7

    @jax.jit
    def gradients(query):
        picked = jax.nn.one_hot(query, 73)[None, :, None, None] * dout
        return value_and_gradients(by_chunks, CHUNK, *arrays, picked, DOCUMENTS)[1:4]

    for own in (7, 21, 22, 30, 31, 52, 68, 79):
        dq, dk, dv = (np.asarray(x) for x in gradients(own - before))
        seen = (np.arange(80) <= own) & (DOCUMENTS[:, own, None] == DOCUMENTS)
        np.testing.assert_array_equal((dk != 0).any((2, 3)), seen)
        np.testing.assert_array_equal((dv != 0).any((2, 3)), seen)
        np.testing.assert_array_equal((dq != 0).any((0, 2, 3)), np.arange(before, 80) == own)


def test_weights_without_rotation_add_up_to_1_in_any_width():
    """Also maps that return more dimensions than they receive (R ≠ H)."""
    q, k, v, *_ = inputs(73, 80)

    def widened(x):
        return jnp.concatenate([np.float32(0.6) * x, np.float32(0.8) * x], axis=-1)

    @jax.jit
    def averages(q, k, v):
        documents = jnp.asarray(DOCUMENTS)
        return LinearAttention(CHUNK).attend_features(q, k, v, widened, widened, documents)[0]

    out = averages(q, k, np.ones_like(v))
    np.testing.assert_allclose(out, np.ones(out.shape), atol=1e-6)


def test_bfloat16_inputs_are_rounded_once_more_at_the_end():
    q, k, v, *turn, _ = inputs(80, 80)
    attend = jax.jit(functools.partial(by_chunks, segment_ids=None))
    rounded = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    found, wanted = attend(*rounded, *turn), attend(*(x.astype(np.float32) for x in rounded), *turn)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=2**-8, atol=1e-6)


def test_memory_is_linear_in_the_length():
    def loss(q, k, v, segment_ids):
        out, _ = LinearAttention(512).attend_features(
            q, k, v, jnp.negative, jnp.negative, segment_ids
        )
        return jnp.square(out).sum()

    def bytes_used(length):
        shapes = [jax.ShapeDtypeStruct((1, length, n, H), np.float32) for n in (2, 1, 1)]
        shapes.append(jax.ShapeDtypeStruct((1, length), np.int32))
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # The scores of every chunk would take 64 MiB, and whole matrices 2 GiB.
    assert bytes_used(16384) < min(4.4 * bytes_used(4096), 32 * 2**20)
