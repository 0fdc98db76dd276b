"""Attention against plain softmax attention in float64; what may be seen, by gradient.

Shapes: B batch, T length, N heads, K key-value heads, H head dim.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import BACKENDS, blockwise_attention, check_backend
from rope_jax.attention.splash import splash_attention
from rope_jax.config.model import ModelConfig
from rope_jax.errors import UserError

pytestmark = pytest.mark.usefixtures("compiled_quickly")

H = 8


def plain_attention(q, k, v, segment_ids=None, window=None):
    """softmax(q·kᵀ/√H)·v, one query at a time."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, length, heads, width = q.shape
    group, before = heads // k.shape[2], k.shape[1] - length
    out = np.zeros_like(q)
    for b in range(batch):
        for t in range(length):
            own = before + t
            seen = np.arange(0 if window is None else max(0, own + 1 - window), own + 1)
            if segment_ids is not None:
                seen = seen[segment_ids[b, seen] == segment_ids[b, own]]
            for n in range(heads):
                logits = k[b, seen, n // group] @ q[b, t, n] / np.sqrt(width)
                weights = np.exp(logits - logits.max())
                out[b, t, n] = weights @ v[b, seen, n // group] / weights.sum()
    return out


def inputs(length, heads, kv_heads, batch=2, scale=1.0):
    rng = np.random.default_rng(length)
    shapes = [(batch, length, n, H) for n in (heads, kv_heads, kv_heads)]
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    # Segments of some 20 tokens, other ones in every row.
    segment_ids = np.cumsum(rng.random((batch, length)) < 0.05, axis=1).astype(np.int32)
    return q * np.float32(scale), k, v, segment_ids


KINDS = {
    "xla": BACKENDS["xla"],
    "blockwise": functools.partial(blockwise_attention, block=48),
}


@pytest.fixture(params=list(KINDS))
def attention(request):
    return jax.jit(KINDS[request.param], static_argnums=4)


# Lengths below a chunk, one chunk, a chunk and a bit, and more than 8 chunks of the least size.
@pytest.mark.parametrize("segments", [False, True], ids=["one document", "segments"])
@pytest.mark.parametrize(
    ("length", "heads", "kv_heads"), [(1, 4, 2), (5, 4, 4), (64, 4, 2), (130, 6, 2), (600, 2, 1)]
)
def test_against_plain_attention(attention, length, heads, kv_heads, segments):
    q, k, v, segment_ids = inputs(length, heads, kv_heads)
    segment_ids = segment_ids if segments else None
    out = attention(q, k, v, segment_ids)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, plain_attention(q, k, v, segment_ids), atol=2e-6)


@pytest.mark.parametrize("window", [1, 3, 64, 129, 10_000])
def test_a_sliding_window_against_plain_attention(attention, window):
    q, k, v, segment_ids = inputs(300, 4, 2)  # three chunks
    out = attention(q, k, v, segment_ids, window)
    wanted = plain_attention(q, k, v, segment_ids, window)
    np.testing.assert_allclose(out, wanted, atol=2e-6)


@pytest.mark.parametrize("window", [None, 1, 40, 200])
def test_gradients_against_those_of_plain_attention(attention, window):
    q, k, v, _ = inputs(300, 2, 1, batch=1)
    direction = np.random.default_rng(3).standard_normal(q.shape).astype(np.float32)
    distance = np.subtract.outer(np.arange(300), np.arange(300))
    hidden = (distance < 0) | (distance >= (window or 300))

    def plain(q, k, v):
        logits = jnp.einsum("btnh,bskh->bnts", q, k) * np.float32(H**-0.5)
        weights = jax.nn.softmax(jnp.where(hidden[None, None], -jnp.inf, logits), axis=-1)
        return jnp.sum(jnp.einsum("bnts,bskh->btnh", weights, v) * direction)

    def ours(q, k, v):
        return jnp.sum(attention(q, k, v, None, window) * direction)

    found, wanted = (jax.jit(jax.grad(f, argnums=(0, 1, 2)))(q, k, v) for f in (ours, plain))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_sliding_window_computes_no_more_than_it_needs():
    q, k, v, _ = inputs(4096, 1, 1, batch=1)
    made = jax.make_jaxpr(lambda q, k, v: BACKENDS["xla"](q, k, v, None, 256))(q, k, v)
    (call,) = made.eqns
    program = call.params["call_jaxpr"]
    found = [e.outvars[0].aval.shape for e in program.eqns if e.primitive.name == "dot_general"]
    # eight chunks of 512 rows, each with its own keys and 255 before
    assert [keys for *_, keys in found[0::2]] == [512] + [767] * 7


@pytest.mark.parametrize("length", [512, 601, 4001])
def test_nearly_half_of_the_products_is_left_out(length):
    # Chunks, each with the keys up to its own end: 9/16 of all products with eight of them, 5/8
    # with the four that 512 allows, by shape.
    q, k, v, _ = inputs(length, 2, 2, batch=1)
    (call,) = jax.make_jaxpr(BACKENDS["xla"])(q, k, v).eqns
    program = call.params["call_jaxpr"]
    found = [e.outvars[0].aval.shape for e in program.eqns if e.primitive.name == "dot_general"]
    logits = found[0::2]
    chunks = {512: 4, 601: 5, 4001: 8}[length]
    assert len(logits) == chunks
    share = (chunks + 1) / (2 * chunks)
    assert sum(rows * keys for *_, rows, keys in logits) <= length**2 * (share + 0.02)


def test_large_logits_do_not_overflow(attention):
    q, k, v, _ = inputs(70, 2, 2, scale=200)
    assert np.abs(np.einsum("btnh,bsnh->bnts", q, k)).max() / np.sqrt(H) > 1000
    np.testing.assert_allclose(attention(q, k, v), plain_attention(q, k, v), atol=1e-4)


def test_bfloat16_is_rounded_at_the_ends_only(attention):
    # Logits and softmax in float32: what is left is the rounding of the inputs, q's scale
    # and the weights, each 2^-9 at most.
    q, k, v, segment_ids = inputs(130, 4, 2)
    rounded = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    out = attention(*rounded, segment_ids)
    assert out.dtype == jnp.bfloat16
    wanted = plain_attention(*rounded, segment_ids)
    np.testing.assert_allclose(out.astype(np.float32), wanted, atol=0.02)


def influence(attention, q, k, v, segment_ids):
    """|d out[row, t] / d (q, k, v)[row, s]|, summed over heads: [3, T, T]. One row."""

    @jax.jit
    def gradients(q, k, v):
        def at(q, k, v, picked):
            # A random direction: the plain sum of a head's outputs could cancel.
            return jnp.sum(attention(q, k, v, segment_ids)[0] * picked)

        def one(t):
            direction = jnp.asarray(np.random.default_rng(0).standard_normal((1, *q.shape[2:])))
            picked = jax.nn.one_hot(t, q.shape[1])[:, None, None] * direction.astype(jnp.float32)
            found = jax.grad(at, argnums=(0, 1, 2))(q, k, v, picked)
            return jnp.stack([jnp.abs(g[0]).sum((-1, -2)) for g in found])

        return jax.lax.map(one, jnp.arange(q.shape[1]))

    return np.asarray(gradients(q, k, v)).swapaxes(0, 1)


@pytest.mark.parametrize("segments", [False, True], ids=["one document", "segments"])
def test_nothing_is_seen_of_later_tokens_or_other_segments(attention, segments):
    length = 130  # three chunks
    q, k, v, segment_ids = inputs(length, 4, 2, batch=1)
    if not segments:
        segment_ids = None
    of_q, of_k, of_v = influence(attention, q, k, v, segment_ids)
    visible = np.tri(length, dtype=bool)
    if segments:
        assert segment_ids[0, -1] >= 3
        visible &= segment_ids[0][:, None] == segment_ids[0][None]
    # Exactly zero where nothing may be seen, and not zero where something is.
    for seen in (of_k, of_v):
        assert not np.any(seen[~visible])
    assert np.all(of_v[visible])
    alone = visible.sum(1) == 1  # a softmax of one logit is 1 whatever it is
    assert np.all(of_k[~alone][visible[~alone]])
    assert not np.any(of_q[~np.eye(length, dtype=bool)])
    assert np.all(np.diag(of_q)[~alone])


@pytest.mark.parametrize(
    ("queries", "keys", "window"), [(1, 200, None), (150, 200, 40), (33, 48, None)]
)
def test_fewer_queries_than_keys_are_those_of_the_end(attention, queries, keys, window):
    q, k, v, segment_ids = inputs(keys, 4, 2)
    q = q[:, -queries:]
    for ids in (None, segment_ids):
        wanted = plain_attention(q, k, v, ids, window)
        np.testing.assert_allclose(attention(q, k, v, ids, window), wanted, atol=2e-6)

    def squared(f):
        return jax.jit(jax.grad(lambda *x: (f(*x, None, window) ** 2).sum(), argnums=(0, 1, 2)))

    found, wanted = squared(attention)(q, k, v), squared(BACKENDS["xla"])(q, k, v)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


# Blocks


def test_blocks_give_gradients_across_documents_and_heads():
    q, k, v, segment_ids = inputs(200, 4, 2)
    by_blocks = functools.partial(blockwise_attention, block=48)

    def squared(f):
        return jax.jit(
            jax.grad(lambda *x: (f(*x, segment_ids, None) ** 2).sum(), argnums=(0, 1, 2))
        )

    found, wanted = squared(by_blocks)(q, k, v), squared(BACKENDS["xla"])(q, k, v)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def alibi(slopes, q, k, query_index, key_index):
    """A bias: −slope · distance."""
    distance = (query_index[:, None] - key_index[None]).astype(jnp.float32)
    scores = jnp.einsum("bkgth,bksh->bkgts", q, k)
    return scores - slopes.reshape(1, k.shape[1], -1, 1, 1) * distance[None, None, None]


def near_and_far(scale, q, k, query_index, key_index):
    """A position map: queries are multiplied for keys 20 tokens away or more."""
    far = (query_index[:, None] - key_index[None] >= 20)[None, None, None]
    near_scores = jnp.einsum("bkgth,bksh->bkgts", q, k)
    return jnp.where(far, jnp.einsum("bkgth,bksh->bkgts", q * scale, k), near_scores)


@pytest.mark.parametrize(
    ("scores", "argument"),
    [
        (alibi, np.array([0.5, 0.1, 0.02, 0.004], np.float32)),
        (near_and_far, np.float32(0.3)),
    ],
    ids=["bias", "map"],
)
def test_scores_of_a_users_own_and_their_gradients(scores, argument):
    q, k, v, segment_ids = inputs(130, 4, 2)

    def plain(argument, q, k, v):
        index = jnp.arange(130)
        grouped = (q * np.float32(H**-0.5)).reshape(2, 130, 2, 2, H).transpose(0, 2, 3, 1, 4)
        keys, values = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
        logits = scores(argument, grouped, keys, index, index)
        seen = jnp.tril(jnp.ones((130, 130), bool))[None]
        seen = seen & (segment_ids[:, :, None] == segment_ids[:, None])
        weights = jax.nn.softmax(jnp.where(seen[:, None, None], logits, -jnp.inf), axis=-1)
        out = jnp.einsum("bkgts,bksh->bkgth", weights, values)
        return out.transpose(0, 3, 1, 2, 4).reshape(2, 130, 4, H)

    def ours(argument, q, k, v):
        return blockwise_attention(
            q, k, v, segment_ids, scores=scores, arguments=argument, block=32
        )

    np.testing.assert_allclose(
        jax.jit(ours)(argument, q, k, v), jax.jit(plain)(argument, q, k, v), atol=2e-6
    )

    def gradients(f):
        return jax.jit(jax.grad(lambda *x: (f(*x) ** 2).sum(), argnums=(0, 1, 2, 3)))

    found, wanted = (gradients(f)(argument, q, k, v) for f in (ours, plain))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5)


def test_blocks_under_vmap_and_in_reverse_do_no_more_than_alone():
    q, k, v, _ = inputs(150, 2, 1, batch=3)

    def loss(q, k, v):
        return (blockwise_attention(q, k, v, block=48) ** 2).sum()

    each = [x[:, None] for x in (q, k, v)]
    one_by_one = jax.vmap(jax.grad(loss, argnums=(0, 1, 2)))
    found = jax.jit(one_by_one)(*each)
    wanted = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a[:, 0], b, atol=1e-6)
    # A loop whose end depended on a row would compare and choose for each row: [3] booleans.
    loops = [e for e in equations(jax.make_jaxpr(one_by_one)(*each)) if e.primitive.name == "while"]
    assert len(loops) == 2
    for loop in loops:
        assert loop.params["cond_jaxpr"].out_avals[0].shape == ()


def equations(jaxpr):
    """All of a program's, inner ones included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            if hasattr(value, "eqns"):
                yield from equations(value)


def test_blocks_above_the_diagonal_and_before_the_window_are_skipped():
    counted = []

    def note(i, j):
        counted.append((int(i), int(j)))

    def count(argument, q, k, query_index, key_index):
        jax.debug.callback(note, query_index[0], key_index[0])
        return jnp.einsum("bkgth,bksh->bkgts", q, k)

    q, k, v, _ = inputs(256, 1, 1, batch=1)
    run = functools.partial(blockwise_attention, scores=count, block=64)
    jax.block_until_ready(run(q, k, v))
    jax.effects_barrier()
    assert sorted(counted) == [(64 * i, 64 * j) for i in range(4) for j in range(i + 1)]
    counted.clear()
    jax.block_until_ready(run(q, k, v, None, 65))
    jax.effects_barrier()
    wanted = [(64 * i, 64 * j) for i in range(4) for j in range(max(0, i - 1), i + 1)]
    assert sorted(counted) == wanted


def test_the_program_does_not_grow_with_the_length_and_its_memory_is_linear():
    def loss(q, k, v):
        return blockwise_attention(q, k, v).sum()

    sizes, bytes_used = [], []
    for length in (4096, 16384):
        shapes = [jax.ShapeDtypeStruct((1, length, n, H), np.float32) for n in (2, 1, 1)]
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        sizes.append(len(list(equations(jax.make_jaxpr(program)(*shapes)))))
        memory = program.lower(*shapes).compile().memory_analysis()
        bytes_used.append(memory.temp_size_in_bytes)
    assert sizes[0] == sizes[1]
    assert bytes_used[1] < 4.4 * bytes_used[0]
    # One array of logits would be 2 GiB.
    assert bytes_used[1] < 64 * 2**20


# Kernels


@pytest.mark.parametrize(
    ("queries", "keys", "window", "segments"), [(130, 130, None, False), (40, 600, 100, True)]
)
def test_splash_interpreted(queries, keys, window, segments):
    q, k, v, segment_ids = inputs(keys, 4, 2, batch=1)
    q, ids = q[:, -queries:], segment_ids if segments else None
    # the kernel itself mixes types and shapes
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = splash_attention(q, k, v, ids, window, interpret=True)
    np.testing.assert_allclose(found, plain_attention(q, k, v, ids, window), atol=2e-6)


def test_splash_interpreted_has_the_same_gradients():
    q, k, v, segment_ids = inputs(140, 2, 1, batch=1)

    def gradients(attend):
        return jax.grad(lambda *x: (attend(*x, segment_ids) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = gradients(functools.partial(splash_attention, interpret=True))
    for a, b in zip(found, gradients(BACKENDS["xla"]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("splash", "needs a TPU, and JAX runs on cpu here"),
        ("cudnn", "needs an NVIDIA GPU, and JAX runs on cpu here"),
    ],
)
def test_a_backend_that_is_not_there_is_an_error(name, reason):
    with pytest.raises(UserError, match=f"^model.attention: {name} {reason}; blockwise and xla"):
        check_backend(ModelConfig(attention=name))
    for there in ("xla", "blockwise"):
        check_backend(ModelConfig(attention=there))
