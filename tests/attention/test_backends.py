"""The backends match softmax attention in float64; gradients show which keys are seen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.base import Inputs
from rope_jax.attention.blockwise import Blockwise
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import check_backend
from rope_jax.errors import UserError
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.mask import BandMask
from tests.attention.reference import attention, inputs, seen_keys
from tests.compiled import needs_kernels
from tests.programs import equations

SHORT_BLOCKS = BACKENDS | {"blockwise": Blockwise(block=48)}
NAMES = ["xla", "blockwise", pytest.param("cpu", marks=needs_kernels)]
every_backend = pytest.mark.parametrize("name", NAMES)


@functools.partial(jax.jit, static_argnums=(0, 6))
def value_and_gradients(name, q, k, v, dout, ids, window):
    out, pull_back = jax.vjp(
        lambda q, k, v: SHORT_BLOCKS[name].attend(q, k, v, ids, window), q, k, v
    )
    return out, *pull_back(dout)


# Lengths within one chunk of xla, a little past one, and past four; fewer queries than keys stand
# at the last positions; windows of a key, of more than a block, and of more than there is.
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "kv_heads", "window", "documents"),
    [
        (1, 1, 4, 2, None, False),
        (130, 130, 6, 2, None, True),
        (600, 600, 2, 1, None, False),
        (130, 130, 4, 4, 1, False),
        (300, 300, 4, 2, 129, False),
        (1, 200, 4, 2, 10_000, True),
        (150, 200, 4, 2, 40, True),
    ],
)
@every_backend
def test_values_and_gradients_match_float64(
    name, queries, keys, heads, kv_heads, window, documents
):
    *arrays, ids = inputs(queries, keys, heads, kv_heads)
    ids = ids if documents else None
    found = value_and_gradients(name, *arrays, ids, window)
    wanted = attention(*arrays, seen_keys(queries, keys, 2, ids, BandMask(beyond=window)))
    for a, b, tolerance in zip(found, wanted, (1e-5, 5e-5, 5e-5, 5e-5), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, atol=tolerance)


@pytest.mark.parametrize(
    ("rows", "block"), [(9, 2048), (16, 2048), (17, 1024), (64, 1024), (65, 512)]
)
def test_cudnn_leaves_long_blocks_of_few_heads(rows, block):
    assert BACKENDS["cudnn"].block(rows) == block


@pytest.mark.parametrize("value_width", [6, 8, 20])
def test_cudnn_is_given_heads_of_one_width_and_all_queries(monkeypatch, value_width):
    """With JAX's other implementation in place of cuDNN, which only a GPU has."""
    attend = jax.nn.dot_product_attention

    def without_cudnn(q, k, v, *, implementation, **settings):
        assert q.shape == k.shape[:2] + q.shape[2:]
        assert q.shape[3] == k.shape[3] == v.shape[3]
        return attend(q, k, v, implementation="xla", **settings)

    monkeypatch.setattr(jax.nn, "dot_product_attention", without_cudnn)
    q, k, v, _, ids = map(jnp.asarray, inputs(20, 24, value_width=value_width))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        out = BACKENDS["cudnn"].attend(q, k, v, ids, 5)
    np.testing.assert_allclose(out, BACKENDS["xla"].attend(q, k, v, ids, 5), atol=1e-5)


def test_queries_are_divided_by_the_exact_root():
    """Of the head width: in bfloat16, √48 would be off by 0.13%."""
    q = jnp.ones((1, 1, 1, 48), jnp.bfloat16) * jnp.bfloat16(1.25)
    (scaled,) = Inputs((q,), (q,), q).scaled_queries
    assert scaled.dtype == jnp.bfloat16
    assert (scaled == jnp.bfloat16(1.25 / 48**0.5)).all()


# `cudnn` and `splash` leave them to `blockwise`, which runs here, too.
@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("name", [*NAMES, "cudnn", "splash"])
def test_sinks_of_two_bands_match_float64(name, size):
    # the far keys of a position map have other queries and keys
    *near, v, dout, ids = inputs(150, 200, value_width=6)
    q, k, *_ = inputs(150, 200, batch=2, heads=4, width=8)
    bands, queries, keys = (BandMask(beyond=9), BandMask(nearest=9)), (near[0], 2 * q), (near[1], k)
    sinks = size * np.array([-2.0, 0.5, 2.0, 4.0], np.float32)
    ids, interaction = jnp.asarray(ids), Interaction(bands, sinks=True)

    @jax.jit
    def ours(queries, keys, v, params):
        def attend(*arrays):
            *bands, params = arrays
            return SHORT_BLOCKS[name].attend_bands(interaction, Inputs(*bands, ids, None, params))

        out, pull_back = jax.vjp(attend, queries, keys, v, params)
        return out, *pull_back(jnp.asarray(dout))

    *found, d_params = ours(queries, keys, v, {"sinks": sinks})
    seen = tuple(seen_keys(150, 200, 2, ids, band) for band in bands)
    *wanted, d_sinks = attention(queries, keys, v, dout, seen, sinks=sinks)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    np.testing.assert_allclose(d_params["sinks"], d_sinks, rtol=1e-5, atol=2e-5)


def dot_products(length, window=None):
    """Return the shapes of the logits of xla's chunks."""
    shapes = [jax.ShapeDtypeStruct((1, length, 1, 8), np.float32)] * 3
    attend = functools.partial(BACKENDS["xla"].attend, sliding_window=window)
    program = equations(jax.make_jaxpr(attend)(*shapes))
    found = [e.outvars[0].aval.shape for e in program if e.primitive.name == "dot_general"]
    return [shape[-2:] for shape in found[0::2]]


def test_xla_computes_no_more_than_needed():
    # Eight chunks of 512 rows, each with its own keys and the 255 before them.
    assert dot_products(4096, 256) == [(512, 512)] + [(512, 767)] * 7
    # Each chunk has the keys up to its own end: eight compute 9/16 of all products, four 5/8.
    for length, chunks in ((512, 4), (601, 5), (4001, 8)):
        found = dot_products(length)
        assert len(found) == chunks
        share = (chunks + 1) / (2 * chunks) + 0.02
        assert sum(rows * keys for rows, keys in found) <= length**2 * share


@every_backend
def test_large_logits_do_not_overflow(name):
    q, k, v, dout, _ = inputs(130, 130)
    found, *_ = value_and_gradients(name, 200 * q, k, v, dout, None, None)
    wanted, *_ = attention(200 * q, k, v, dout, seen_keys(130, 130))
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@every_backend
def test_bfloat16_rounds_only_inputs_and_outputs(name):
    # Logits and softmax are float32. What remains is the rounding of the inputs, of q's scale and
    # of the probabilities, each at most 2^-9.
    *arrays, ids = inputs(130, 130)
    rounded = [x.astype(jnp.bfloat16) for x in arrays]
    out, *_ = value_and_gradients(name, *rounded, ids, None)
    assert out.dtype == jnp.bfloat16
    wanted, *_ = attention(*rounded, seen_keys(130, 130, 2, ids))
    np.testing.assert_allclose(out.astype(np.float32), wanted, atol=0.02)


@every_backend
def test_gradients_are_exactly_zero_for_later_tokens_and_other_documents(name):
    length = 130  # two chunks of xla, three blocks of blockwise
    q, k, v, dout, ids = inputs(length, length, batch=1)

    @jax.jit
    def influence(q, k, v, ids):
        """|d out[t] / d (q, k, v)[s]| towards `dout`, summed over heads: [T, 3, T]."""

        def one(t):
            picked = jax.nn.one_hot(t, length)[None, :, None, None] * dout
            gradients = jax.vjp(lambda *x: SHORT_BLOCKS[name].attend(*x, ids), q, k, v)[1](picked)
            return jnp.stack([jnp.abs(g[0]).sum((-1, -2)) for g in gradients])

        return jax.lax.map(one, jnp.arange(length))

    of_q, of_k, of_v = np.asarray(influence(q, k, v, ids)).swapaxes(0, 1)
    (seen,) = seen_keys(length, length, 1, ids)
    assert ids[0, -1] >= 2  # three documents
    np.testing.assert_array_equal(of_v != 0, seen)
    assert not of_k[~seen].any()
    assert not of_q[~np.eye(length, dtype=bool)].any()
    several = seen.sum(1) > 1  # the softmax of a single logit is 1, whatever the logit
    assert np.all(of_k[several][seen[several]])
    assert np.all(np.diag(of_q)[several])


@pytest.mark.parametrize(
    ("fields", "platform", "reason"),
    [
        ({"attention": "splash"}, None, "splash needs a TPU, but the platform is cpu; blockwise"),
        ({"attention": "cudnn"}, None, "cudnn needs an NVIDIA GPU, but the platform is cpu"),
        ({"attention": "cudnn"}, "gpu", "cudnn computes in 16 bits, but model.dtype is float32"),
        ({"attention": "cpu"}, "gpu", "cpu needs a CPU, but the platform is gpu"),
        ({"attention": "cudnn", "dtype": "bfloat16"}, "gpu", None),
        ({"attention": "cudnn", "product_dtype": "bfloat16"}, "gpu", None),
        ({"attention": "xla"}, None, None),
        ({"attention": "blockwise"}, None, None),
    ],
)
def test_a_backend_that_cannot_run_is_an_error(fields, platform, reason):
    config = ModelConfig(**fields, hidden_size=128, num_attention_heads=4)
    if reason is None:
        check_backend(config, platform)
    else:
        with pytest.raises(UserError, match=f"^model.attention: {reason}"):
            check_backend(config, platform)
