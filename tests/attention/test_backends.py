"""The backends match plain softmax attention in float64; gradients show which keys are seen.

Shapes: B batch, T length, N heads, K key-value heads, H head dim.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import BACKENDS
from rope_jax.config.model import ModelConfig
from rope_jax.errors import UserError
from rope_jax.model.resolve import check_backend

pytestmark = pytest.mark.usefixtures("compiled_quickly")

H = 8


def plain_attention(q, k, v, segment_ids=None, window=None):
    """softmax(q·kᵀ/√H)·v in float64, one query at a time."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    segment_ids = None if segment_ids is None else np.asarray(segment_ids)
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
    q, k, v = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
    # Segments of about 20 tokens, different in every row.
    segment_ids = np.cumsum(rng.random((batch, length)) < 0.05, axis=1)
    return q * np.float32(scale), k, v, jnp.asarray(segment_ids, jnp.int32)


KINDS = {
    "xla": BACKENDS["xla"].attend,
    "blockwise": functools.partial(BACKENDS["blockwise"].attend, block=48),
    "cpu": BACKENDS["cpu"].attend,
}


@pytest.fixture(params=list(KINDS))
def attention(request):
    return jax.jit(KINDS[request.param], static_argnums=4)


# Lengths within one chunk, a little past one, and past four.
@pytest.mark.parametrize("segments", [False, True], ids=["one document", "segments"])
@pytest.mark.parametrize(
    ("length", "heads", "kv_heads"), [(1, 4, 2), (5, 4, 4), (64, 4, 2), (130, 6, 2), (600, 2, 1)]
)
def test_backends_match_plain_attention(attention, length, heads, kv_heads, segments):
    q, k, v, segment_ids = inputs(length, heads, kv_heads)
    segment_ids = segment_ids if segments else None
    out = attention(q, k, v, segment_ids)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, plain_attention(q, k, v, segment_ids), atol=2e-6)


@pytest.mark.parametrize("window", [1, 3, 64, 129, 10_000])
def test_a_sliding_window_matches_plain_attention(attention, window):
    q, k, v, segment_ids = inputs(300, 4, 2)  # three chunks of xla
    out = attention(q, k, v, segment_ids, window)
    wanted = plain_attention(q, k, v, segment_ids, window)
    np.testing.assert_allclose(out, wanted, atol=2e-6)


@pytest.mark.parametrize("window", [None, 1, 40, 200])
def test_gradients_match_plain_attention(attention, window):
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


def test_a_sliding_window_computes_no_more_than_needed():
    q, k, v, _ = inputs(4096, 1, 1, batch=1)
    made = jax.make_jaxpr(lambda q, k, v: BACKENDS["xla"].attend(q, k, v, None, 256))(q, k, v)
    (call,) = made.eqns
    program = call.params["call_jaxpr"]
    found = [e.outvars[0].aval.shape for e in program.eqns if e.primitive.name == "dot_general"]
    # Eight chunks of 512 rows, each with its own keys and the 255 before them.
    assert [keys for *_, keys in found[0::2]] == [512] + [767] * 7


@pytest.mark.parametrize("length", [512, 601, 4001])
def test_nearly_half_of_the_products_are_skipped(length):
    # Each chunk has the keys up to its own end. By shape, eight chunks compute 9/16 of all
    # products, and the four that 512 allows compute 5/8.
    q, k, v, _ = inputs(length, 2, 2, batch=1)
    (call,) = jax.make_jaxpr(BACKENDS["xla"].attend)(q, k, v).eqns
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


def test_bfloat16_rounds_only_inputs_and_outputs(attention):
    # Logits and softmax are float32. What remains is the rounding of the inputs, of q's scale and
    # of the probabilities, each at most 2^-9.
    q, k, v, segment_ids = inputs(130, 4, 2)
    rounded = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    out = attention(*rounded, segment_ids)
    assert out.dtype == jnp.bfloat16
    wanted = plain_attention(*rounded, segment_ids)
    np.testing.assert_allclose(out.astype(np.float32), wanted, atol=0.02)


def influence(attention, q, k, v, segment_ids):
    """Return |d out[t] / d (q, k, v)[s]| of one row, summed over heads: [3, T, T]."""

    @jax.jit
    def gradients(q, k, v):
        def at(q, k, v, picked):
            # A random direction, because a plain sum of a head's outputs could cancel.
            return jnp.sum(attention(q, k, v, segment_ids)[0] * picked)

        def one(t):
            direction = jnp.asarray(np.random.default_rng(0).standard_normal((1, *q.shape[2:])))
            picked = jax.nn.one_hot(t, q.shape[1])[:, None, None] * direction.astype(jnp.float32)
            found = jax.grad(at, argnums=(0, 1, 2))(q, k, v, picked)
            return jnp.stack([jnp.abs(g[0]).sum((-1, -2)) for g in found])

        return jax.lax.map(one, jnp.arange(q.shape[1]))

    return np.asarray(gradients(q, k, v)).swapaxes(0, 1)


@pytest.mark.parametrize("segments", [False, True], ids=["one document", "segments"])
def test_later_tokens_and_other_segments_are_not_seen(attention, segments):
    length = 130  # two chunks of xla, three blocks of blockwise
    q, k, v, segment_ids = inputs(length, 4, 2, batch=1)
    if not segments:
        segment_ids = None
    of_q, of_k, of_v = influence(attention, q, k, v, segment_ids)
    visible = np.tri(length, dtype=bool)
    if segments:
        assert segment_ids[0, -1] >= 3
        visible &= segment_ids[0][:, None] == segment_ids[0][None]
    # Exactly zero for what must not be seen, and not zero for what is.
    for seen in (of_k, of_v):
        assert not np.any(seen[~visible])
    assert np.all(of_v[visible])
    alone = visible.sum(1) == 1  # the softmax of a single logit is 1, whatever the logit
    assert np.all(of_k[~alone][visible[~alone]])
    assert not np.any(of_q[~np.eye(length, dtype=bool)])
    assert np.all(np.diag(of_q)[~alone])


@pytest.mark.parametrize(
    ("queries", "keys", "window"), [(1, 200, None), (150, 200, 40), (33, 48, None)]
)
def test_fewer_queries_than_keys_stand_at_the_last_positions(attention, queries, keys, window):
    q, k, v, segment_ids = inputs(keys, 4, 2)
    q = q[:, -queries:]
    for ids in (None, segment_ids):
        wanted = plain_attention(q, k, v, ids, window)
        np.testing.assert_allclose(attention(q, k, v, ids, window), wanted, atol=2e-6)

    def squared(f):
        return jax.jit(jax.grad(lambda *x: (f(*x, None, window) ** 2).sum(), argnums=(0, 1, 2)))

    found, wanted = squared(attention)(q, k, v), squared(BACKENDS["xla"].attend)(q, k, v)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("splash", "needs a TPU, but the platform is cpu"),
        ("cudnn", "needs an NVIDIA GPU, but the platform is cpu"),
    ],
)
def test_a_backend_that_cannot_run_here_is_an_error(name, reason):
    with pytest.raises(UserError, match=f"^model.attention: {name} {reason}; blockwise and xla"):
        check_backend(ModelConfig(attention=name))
    for available in ("xla", "blockwise"):
        check_backend(ModelConfig(attention=available))


def test_cudnn_needs_factors_of_16_bits():
    sizes = {"attention": "cudnn", "hidden_size": 128, "num_attention_heads": 4}
    with pytest.raises(UserError, match=r"^model\.attention: cudnn computes in 16 bits, but"):
        check_backend(ModelConfig(**sizes), "gpu")
    for field in ("dtype", "product_dtype"):
        check_backend(ModelConfig(**sizes, **{field: "bfloat16"}), "gpu")
