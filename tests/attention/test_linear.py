"""Linear attention matches a double loop in float64; gradients show which keys are seen.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim, V dimensions
of a value; pairs: H/2.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.linear import linear_attention
from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling, rotate

N, K, H, V = 4, 2, 8, 6
BASE = 100.0
CHUNK = 16


def phi(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def turned(x, positions):
    """Rotate [B, X, heads, H] in float64, each pair (i, i + H/2) as one complex number."""
    theta = BASE ** (-2 * np.arange(H // 2) / H)
    turn = np.exp(1j * positions[:, :, None, None] * theta)
    pairs = (x[..., : H // 2] + 1j * x[..., H // 2 :]) * turn
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def double_loop(q, k, v, positions, segment_ids=None):
    """Eq. 19 of RoFormer in float64, over pairs of a query and a key."""
    groups, before = q.shape[2] // k.shape[2], k.shape[1] - q.shape[1]
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, groups, axis=2) for x in (k, v))
    ids = np.zeros(k.shape[:2]) if segment_ids is None else np.asarray(segment_ids)
    phi_q, phi_k = phi(q), phi(k)
    turned_q, turned_k = turned(phi_q, positions[:, before:]), turned(phi_k, positions)
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for t in range(q.shape[1]):
        numerator, denominator = 0.0, 0.0
        for s in range(before + t + 1):
            same = (ids[:, s] == ids[:, before + t])[:, None, None]
            weight = (turned_q[:, t] * turned_k[:, s]).sum(-1, keepdims=True)
            numerator = numerator + same * weight * v[:, s]
            denominator = denominator + same * (phi_q[:, t] * phi_k[:, s]).sum(-1, keepdims=True)
        out[:, t] = numerator / denominator
    return out


def inputs(queries, keys=None, batch=2):
    rng = np.random.default_rng(queries)
    keys = keys or queries
    shapes = [(batch, queries, N, H), (batch, keys, K, H), (batch, keys, K, V)]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def by_chunks(q, k, v, cos, sin, segment_ids, chunk=CHUNK):
    def rotate_queries(x):
        return rotate(x, cos[:, -q.shape[1] :], sin[:, -q.shape[1] :])

    return linear_attention(
        q, k, v, rotate_queries, lambda x: rotate(x, cos, sin), segment_ids, chunk=chunk
    )


@functools.partial(jax.jit, static_argnames="chunk")
def attend(q, k, v, positions, segment_ids=None, *, chunk=CHUNK):
    """Linear attention with RoPE; positions [B, S]."""
    frequencies = parse_scaling({"type": "none"}).frequencies(RotaryGeometry(H, BASE))
    return by_chunks(q, k, v, *cos_sin(frequencies, positions), segment_ids, chunk)


def counted(length, batch=2):
    """Positions from 0, shifted by 3 per row."""
    return np.arange(length)[None] + 3 * np.arange(batch)[:, None]


def documents(length, *borders):
    """Return segment ids [B, S] of rows that have a new document at each of their borders."""
    index = np.arange(length)
    rows = [7 + np.searchsorted(row, index, side="right") for row in borders]
    return jnp.asarray(np.stack(rows), jnp.int32)


# Of 80 tokens in 5 chunks of 16: row 0 has borders in mid-chunk and a document over 5 chunks; row 1
# has a border between chunks, one before a chunk's last token, two in one chunk, and one before the
# last token.
BORDERS = (5, 70), (16, 31, 50, 53, 79)


@pytest.mark.parametrize(
    ("queries", "keys", "borders"),
    [
        (1, 1, None),
        (17, 17, None),  # cut into 9 and 8
        (73, 80, None),  # cut into 4 × 15 and 13
        (80, 80, BORDERS),
        (29, 80, BORDERS),
        (1, 80, BORDERS),
    ],
)
def test_the_result_is_that_of_the_double_loop(queries, keys, borders):
    q, k, v = inputs(queries, keys)
    positions, segment_ids = counted(keys), documents(keys, *borders) if borders else None
    found = attend(q, k, v, positions, segment_ids)
    np.testing.assert_allclose(found, double_loop(q, k, v, positions, segment_ids), atol=2e-6)


@pytest.mark.parametrize("chunk", [1, 1000])
def test_chunk_does_not_change_the_result(chunk):
    q, k, v = inputs(80)
    arguments = q, k, v, counted(80), documents(80, *BORDERS)
    np.testing.assert_allclose(attend(*arguments, chunk=chunk), attend(*arguments), atol=2e-6)


def test_gradients_are_exactly_zero_outside_the_seen_keys():
    q, k, v = inputs(73, 80)
    segment_ids, before = documents(80, *BORDERS), 7
    cotangent = np.random.default_rng(0).standard_normal((2, N, V)).astype(np.float32)

    def output(q, k, v, query):
        out = attend(q, k, v, counted(80), segment_ids)
        return (jax.lax.dynamic_index_in_dim(out, query, 1, keepdims=False) * cotangent).sum()

    gradients, ids = jax.jit(jax.grad(output, argnums=(0, 1, 2))), np.asarray(segment_ids)
    for own in (7, 21, 22, 30, 31, 52, 68, 79):
        dq, dk, dv = (np.asarray(x) for x in gradients(q, k, v, own - before))
        seen = (np.arange(80) <= own) & (ids == ids[:, own, None])
        np.testing.assert_array_equal((dk != 0).any((2, 3)), seen)
        np.testing.assert_array_equal((dv != 0).any((2, 3)), seen)
        np.testing.assert_array_equal((dq != 0).any((0, 2, 3)), np.arange(before, 80) == own)


def test_only_relative_positions_matter():
    q, k, v = inputs(73, 80)
    moved = counted(80) + 1_000_000 * np.array([[1], [-1]])
    np.testing.assert_allclose(attend(q, k, v, moved), attend(q, k, v, counted(80)), atol=5e-6)


def test_weights_without_rotation_add_up_to_1_in_any_width():
    """Also maps that return more dimensions than they receive (R ≠ H)."""
    q, k, v = inputs(73, 80)

    def widened(x):
        return jnp.concatenate([np.float32(0.6) * x, np.float32(0.8) * x], axis=-1)

    @jax.jit
    def averages(q, k, v):
        segment_ids = documents(80, *BORDERS)
        return linear_attention(q, k, v, widened, widened, segment_ids, chunk=CHUNK)

    out = averages(q, k, np.ones_like(v))
    np.testing.assert_allclose(out, np.ones(out.shape), atol=1e-6)


def whole_matrices(q, k, v, cos, sin, segment_ids):
    """Return the output by [T, S] matrices of weights."""
    queries, keys, groups = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
    phi_q, phi_k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    turned_q = rotate(phi_q, cos[:, -queries:], sin[:, -queries:])
    rotated = jnp.einsum("btnh,bsnh->bnts", turned_q, rotate(phi_k, cos, sin))
    plain = jnp.einsum("btnh,bsnh->bnts", phi_q, phi_k)
    seen = np.tri(queries, keys, keys - queries, dtype=bool)[None]
    seen = (seen & (segment_ids[:, -queries:, None] == segment_ids[:, None]))[:, None]
    weights = jnp.where(seen, rotated, 0) / jnp.where(seen, plain, 0).sum(-1, keepdims=True)
    return jnp.einsum("bnts,bsnv->btnv", weights, v)


def test_gradients_match_whole_matrices():
    """Also those of cos and sin, and where q or k is exactly 0, at which the pieces of φ meet."""
    q, k, v = inputs(73, 80)
    q[0, 20], k[:, 1] = 0, 0
    frequencies = parse_scaling({"type": "none"}).frequencies(RotaryGeometry(H, BASE))
    arguments = q, k, v, *cos_sin(frequencies, counted(80))
    segment_ids = documents(80, *BORDERS)

    def gradients(attention):
        def loss(*arguments):
            return jnp.square(attention(*arguments, segment_ids)).sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4)))(*arguments)

    for a, b in zip(gradients(by_chunks), gradients(whole_matrices), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5)


def test_small_phi_keeps_its_digits():
    """elu(x) + 1 rounds to 0 below −17, and 0/0 would be NaN."""
    q, k, v = inputs(73, 80)
    q, k, positions = q - np.float32(18), k - np.float32(18), counted(80)
    found = attend(q, k, v, positions)
    np.testing.assert_allclose(found, double_loop(q, k, v, positions), atol=5e-6)


def test_bfloat16_inputs_are_rounded_once_more_at_the_end():
    rounded, positions = [x.astype(jnp.bfloat16) for x in inputs(80)], counted(80)
    found = attend(*rounded, positions)
    wanted = attend(*(x.astype(np.float32) for x in rounded), positions)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=2**-8, atol=1e-6)


def test_memory_is_linear_in_the_length():
    def loss(q, k, v, segment_ids):
        out = linear_attention(q, k, v, jnp.negative, jnp.negative, segment_ids, chunk=512)
        return jnp.square(out).sum()

    def bytes_used(length):
        shapes = [jax.ShapeDtypeStruct((1, length, n, H), np.float32) for n in (2, 1, 1)]
        shapes.append(jax.ShapeDtypeStruct((1, length), np.int32))
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # The scores of every chunk would take 64 MiB, and whole matrices 2 GiB.
    assert bytes_used(16384) < min(4.4 * bytes_used(4096), 32 * 2**20)


@pytest.mark.parametrize(("queries", "heads"), [(9, 4), (8, 3)])
def test_what_does_not_fit_is_an_error(queries, heads):
    q, k, v = (jnp.ones((1, *shape)) for shape in ((queries, heads, H), (8, 2, H), (8, 2, V)))
    with pytest.raises(ValueError, match=f"q: has {queries} tokens and {heads} heads; k, with 8"):
        linear_attention(q, k, v, lambda x: x, lambda x: x)
