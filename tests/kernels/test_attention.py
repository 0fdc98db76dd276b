"""The kernel of attention against float64, at sizes that fill no block, rounding or not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.base import Inputs
from rope_jax.positions.encodings import ENCODINGS, Sizes
from rope_jax.positions.interaction import (
    Interaction,
    capped,
    decaying_product,
    dot_product,
    plus_by_distance,
    plus_key_by_distance,
    value_by_distance,
)
from rope_jax.positions.mask import BandMask
from tests.attention.reference import attention, seen_keys
from tests.compiled import needs_kernels
from tests.kernels.arrays import EACH, EACH_ROUNDED, along, as_bfloat16, cases, draw

pytestmark = needs_kernels
CPU, BLOCKWISE = BACKENDS["cpu"], BACKENDS["blockwise"]


@functools.partial(jax.jit, static_argnums=5)
def attention_and_gradients(queries, keys, v, dout, ids, bands):
    def attend(queries, keys, v):
        return CPU.attend_bands(Interaction(bands), Inputs(queries, keys, v, ids))

    out, pull_back = jax.vjp(attend, queries, keys, v)
    return out, *pull_back(dout)


def check_attention(queries, keys, v, dout, ids, bands, size=1.0):
    found = attention_and_gradients(queries, keys, v, dout, ids, bands)
    shape = queries[0].shape[1], v.shape[1], len(v)
    seen = tuple(seen_keys(*shape, ids, band) for band in bands)
    wanted = attention(queries, keys, v, dout, seen)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        # gradients grow with the size, and so do logits, whose rounding changes the weights
        np.testing.assert_allclose(a, b, atol=2e-5 * size**1.5)


def documents(batch, keys, mean):
    rng = np.random.default_rng(4)
    return np.int32(rng.random((batch, keys)).cumsum(1) // (mean / 2))


# Widths that fill no vector, values narrower than keys, grouped heads, one query, several chunks of
# keys, and more queries than a span has.
@pytest.mark.parametrize(
    ("name", "sizes"),
    cases(
        [
            (1, 1, 1, 2, 1, 3, 5),
            (2, 33, 70, 4, 2, 20, 12),
            (1, 300, 700, 2, 2, 17, 17),
            (3, 64, 64, 6, 2, 32, 33),
            (1, 1100, 1100, 1, 1, 8, 8),
        ],
        (1, 2, 4),
    ),
)
def test_attention_is_that_of_float64(choose, name, sizes):
    choose(name)
    batch, queries, keys, heads, kv_heads, width, value_width = sizes
    q, k = draw(batch, queries, heads, width), draw(batch, keys, kv_heads, width, seed=1)
    v = draw(batch, keys, kv_heads, value_width, seed=2)
    dout = draw(batch, queries, heads, value_width, seed=3)
    ids = documents(batch, keys, 60)
    for window, own in ((None, None), (50, None), (3, ids)):
        for size in (1, 30):
            bands = (BandMask(beyond=window),)
            check_attention((q * np.float32(size),), (k,), v, dout, own, bands, size)


# Near and far keys, of which the first queries see none that are far; sinks; chunks, of which one
# band sees none at all.
@pytest.mark.parametrize(
    ("bands", "ids"),
    [
        ((BandMask(beyond=50), BandMask(nearest=50)), None),
        ((BandMask(beyond=20), BandMask(nearest=20, first=4)), documents(2, 170, 80)),
        (
            (
                BandMask(chunk=30, chunks_back=(0, 0)),
                BandMask(chunk=30, chunks_back=(1, 1)),
                BandMask(chunk=30, chunks_back=(2, None)),
                BandMask(nearest=10_000),
            ),
            documents(2, 170, 80),
        ),
        ((BandMask(beyond=20, own_chunk=30), BandMask(nearest=20, own_chunk=30)), None),
    ],
    ids=["near and far", "sinks", "chunks", "own chunks"],
)
def test_bands_are_those_of_float64(bands, ids):
    queries = tuple(draw(2, 150, 4, 16, seed=i) for i in range(len(bands)))
    keys = tuple(draw(2, 170, 2, 16, seed=10 + i) for i in range(len(bands)))
    check_attention(queries, keys, draw(2, 170, 2, 12), draw(2, 150, 4, 12), ids, bands)


# Tables shorter and longer than the keys, of each text or of all; one query of many keys.
@pytest.mark.parametrize(("name", "low_precision"), [("best", False), *((x, True) for x in EACH)])
@pytest.mark.parametrize(
    ("queries", "keys", "tables", "distances"),
    [(150, 170, 2, 40), (1, 300, 1, 7), (700, 700, 1, 900)],
)
def test_a_bias_by_distance_is_that_of_float64(
    choose, name, low_precision, queries, keys, tables, distances
):
    choose(name)
    bands = BandMask(beyond=50), BandMask(nearest=50)
    qs = tuple(draw(2, queries, 4, 16, seed=i) for i in (0, 1))
    ks = tuple(draw(2, keys, 2, 16, seed=i) for i in (2, 3))
    v, dout = draw(2, keys, 2, 12, seed=4), draw(2, queries, 4, 12, seed=5)
    table, interaction = (
        3 * draw(tables, 4, distances, seed=6),
        Interaction(bands, plus_by_distance),
    )
    ids = jnp.asarray(documents(2, keys, 80)) if tables == 2 else None

    def gradients(backend, low_precision=False):
        def run(qs, ks, v, table):
            inputs = Inputs(qs, ks, v, ids, params={"by_distance": table})
            return backend.attend_bands(interaction, inputs, low_precision)

        return jax.tree.leaves(along(run, qs, ks, v, table, dout)[1:])

    found, wanted = gradients(CPU, low_precision), gradients(BLOCKWISE)
    if low_precision:
        for a, b in zip(found, wanted, strict=True):
            assert np.linalg.norm(a - b) < 0.01 * np.linalg.norm(b)
        return
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    distance = np.arange(keys)[-queries:, None] - np.arange(keys)
    bias = table[:, :, np.clip(distance, 0, distances - 1)]
    seen = tuple(seen_keys(queries, keys, 2, ids, band) for band in bands)
    wanted = jax.tree.leaves(attention(qs, ks, v, dout, seen, bias)[1:])
    for a, b in zip(found, wanted):  # noqa: B905  (all but the table's)
        np.testing.assert_allclose(a, b, atol=1e-4)


# More queries than are computed together; the fastest pair decays by 3.5 in 64 tokens, so that for
# a whole window at once, the logits of hidden keys would overflow.
@pytest.mark.parametrize("with_documents", [False, True])
def test_a_decay_by_distance_is_that_in_blocks(with_documents):
    queries, keys = 4500, 4700
    q, k = draw(1, queries, 2, 6), draw(1, keys, 1, 6, seed=1)
    v, dout = draw(1, keys, 1, 4, seed=2), draw(1, queries, 2, 4, seed=3)
    decay = jnp.float32(np.log(3.5) / 64) * jnp.float32([1, 0.01])  # of two pairs; the rest stays
    ids = jnp.asarray(documents(1, keys, 900)) if with_documents else None

    def gradients(backend):
        def run(q, k, v):
            inputs = Inputs((q,), (k,), v, ids, params={"decay": decay})
            return backend.attend_bands(Interaction(scores=decaying_product), inputs)

        return jax.tree.leaves(along(run, q, k, v, dout))

    for a, b in zip(gradients(CPU), gradients(BLOCKWISE), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


# 64 and 120 heads are cut into spans of 512 and 1024 queries, the last not full; one head, of 256.
@pytest.mark.parametrize("low_precision", [False, True])
@pytest.mark.parametrize("heads", [64, 120])
def test_spans_of_all_lengths_compute_the_same(heads, low_precision):
    q, k, v = (draw(1, 1100, heads, 4, seed=seed) for seed in range(3))

    @functools.partial(jax.jit, static_argnums=3)
    def attend(q, k, v, low_precision):
        return CPU.attend_bands(Interaction(), Inputs((q,), (k,), v), low_precision)

    together = attend(q, k, v, low_precision)
    for n in (0, heads - 1):
        one = (x[:, :, n : n + 1] for x in (q, k, v))
        alone = attend(*one, low_precision)
        np.testing.assert_array_equal(together[:, :, n], alone[:, :, 0])


# In blocks of 128 tokens: tables that end within a block and beyond one, and a window beside them.
# The last table reaches beyond the window, where all is computed in blocks.
@pytest.mark.parametrize("low_precision", [False, True])
@pytest.mark.parametrize(
    ("distances", "beyond", "with_documents"),
    [(17, None, False), (200, None, True), (2, 40, True), (40, 20, False)],
)
def test_vectors_by_distance_are_those_in_blocks(distances, beyond, with_documents, low_precision):
    queries, keys = 300, 470
    q, k, v = (draw(2, n, heads, 8, seed=n) for n, heads in ((queries, 4), (keys, 2), (keys, 2)))
    tables, dout = [draw(distances, 8, seed=n) for n in (1, 2)], draw(2, queries, 4, 8)
    ids = jnp.asarray(documents(2, keys, 90)) if with_documents else None
    interaction = Interaction(
        (BandMask(beyond=beyond),), scores=plus_key_by_distance, values=value_by_distance
    )

    def gradients(backend, low_precision=False):
        def run(q, k, v, table_of_keys, table_of_values):
            params = {"keys": table_of_keys, "values": table_of_values}
            inputs = Inputs((q,), (k,), v, ids, params=params)
            return backend.attend_bands(interaction, inputs, low_precision)

        is_far = distances < (beyond or keys)
        assert (backend is CPU and is_far) == ("ffi" in str(jax.make_jaxpr(run)(q, k, v, *tables)))
        return jax.tree.leaves(along(run, q, k, v, *tables, dout))

    for a, b in zip(gradients(CPU, low_precision), gradients(BLOCKWISE), strict=True):
        assert np.linalg.norm(a - b) <= (0.02 if low_precision else 1e-5) * np.linalg.norm(b)


# One hidden unit is constant; far queries see keys on both sides of several knots.
@pytest.mark.parametrize("low_precision", [False, True])
@pytest.mark.parametrize(("name", "with_documents"), [(EACH[0], True), *((x, False) for x in EACH)])
def test_the_bias_of_fire_is_that_in_blocks(choose, name, low_precision, with_documents):
    choose(name)
    queries, keys, fire = 300, 1500, ENCODINGS["fire"](type="fire", threshold=30)
    q, k, v = (draw(2, n, heads, 8, seed=n) for n, heads in ((queries, 4), (keys, 2), (keys, 2)))
    ids, positions = None, np.arange(keys)[None]
    if with_documents:
        ids, positions = jnp.asarray(documents(2, keys, 90)), np.tile(positions % 90, (2, 1))
    parameters = fire.initial(Sizes(1, 32, 4, 8, 0.02), jax.random.key(3))
    parameters["hidden_kernel"] = parameters["hidden_kernel"].at[0, 3].set(0)
    parameters["output_kernel"] = 8 * parameters["output_kernel"]
    layer = fire.layer_params(parameters, positions, 4, 4)

    def gradients(backend, low_precision=False):
        def run(q, k, v, layer):
            inputs = Inputs((q,), (k,), v, ids, params=jax.tree.map(lambda x: x[0], layer))
            return backend.attend_bands(Interaction(scores=fire.scores), inputs, low_precision)

        return jax.tree.leaves(along(run, q, k, v, layer, draw(2, queries, 4, 8, seed=5)))

    # The logits' derivatives add up to 0 for each query, so those of the network nearly cancel.
    relative = 0.1 if low_precision else 3e-4
    for a, b in zip(gradients(CPU, low_precision), gradients(BLOCKWISE), strict=True):
        assert np.linalg.norm(a - b) <= relative * np.linalg.norm(b)


def test_a_bias_beside_sinks_is_added_in_blocks():
    q, k, v = (draw(1, 40, heads, 8, seed=heads) for heads in (4, 2, 2))
    inputs = Inputs((q,), (k,), v, params={"by_distance": draw(4, 30), "sinks": draw(4)})
    interaction = Interaction(scores=plus_by_distance, sinks=True)
    found, wanted = (
        jax.jit(functools.partial(backend.attend_bands, interaction))(inputs)
        for backend in (CPU, BLOCKWISE)
    )
    np.testing.assert_array_equal(found, wanted)


def test_the_shares_of_bands_add_up_to_one_however_large_the_logits():
    q, v = np.full((1, 100, 1, 4), 50.0, np.float32), np.ones((1, 100, 1, 4), np.float32)
    bands = BandMask(beyond=30), BandMask(nearest=30)  # logits of 5,000
    found, *_ = attention_and_gradients((q, q), (q, q), v, v, None, bands)
    np.testing.assert_allclose(found, v, atol=1e-6)


def test_results_do_not_depend_on_the_order_in_which_threads_work():
    q, dout = draw(2, 700, 3, 16), draw(2, 700, 3, 16, seed=1)
    run = jax.jit(lambda q, dout: jax.vjp(CPU.attend, q, q, q)[1](dout))
    first = run(q, dout)
    for _ in range(5):
        assert all(np.array_equal(a, b) for a, b in zip(first, run(q, dout), strict=True))


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("name", EACH)
def test_weights_are_exact_to_float32(choose, name, size):
    """Over the range of logits that a softmax sees, from equal ones to a single one."""
    choose(name)
    q, k = draw(1, 512, 1, 4) * np.float32(size), draw(1, 512, 1, 4, seed=1)
    values = np.eye(512, dtype=np.float32)[None, :, None]
    found = attention_and_gradients((q,), (k,), values, values, None, (BandMask(),))[0][0, :, 0]
    logits = np.einsum("th,sh->ts", *(np.float64(x[0, :, 0]) for x in (q, k))) / 2
    logits = np.where(np.tri(512, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    # a logit's own rounding, relative to the weight, and what underflows
    error = np.abs(found - weights) / (weights + 1e-30)
    assert error[weights > 1e-30].max() < 4e-7 * (10 + size * 20)


def test_vmap_computes_each_element():
    q, attend = draw(3, 1, 40, 2, 8), jax.jit(CPU.attend)
    for a, b in zip(jax.jit(jax.vmap(attend))(q, q, q), q, strict=True):
        np.testing.assert_array_equal(a, attend(b, b, b))


def exact_attention(q, k, v):
    return CPU.attend(q, k, v, None, 200)


def rounded_attention(q, k, v, window=200):
    return CPU.attend_bands(Interaction().within(window), Inputs((q,), (k,), v), True)


# Odd numbers of queries, keys and columns leave half of a pair empty.
@pytest.mark.parametrize(
    ("name", "sizes"),
    cases(
        [
            (1, 1, 1, 1, 3, 5),
            (33, 70, 4, 2, 20, 12),
            (300, 701, 2, 2, 17, 31),
            (65, 65, 2, 1, 70, 9),
        ],
        (1, 2, 3),
        EACH_ROUNDED,
    ),
)
def test_rounded_attention_rounds_nothing_but_factors(choose, name, sizes):
    choose(name)
    queries, keys, heads, kv_heads, width, value_width = sizes
    q, k = draw(1, queries, heads, width), draw(1, keys, kv_heads, width, seed=1)
    v = draw(1, keys, kv_heads, value_width, seed=2)
    dout = draw(1, queries, heads, value_width, seed=3)
    found = along(rounded_attention, q, k, v, dout)
    rounded = [as_bfloat16(x) for x in (q, k, v, dout)]
    seen = seen_keys(queries, keys, band=BandMask(beyond=200))
    results, every_size = (attention(*rounded, seen, sizes=sizes) for sizes in (False, True))
    for a, result, size in zip(found, results, every_size, strict=True):
        # the rounding of dout·v - delta's factors, and of the probabilities or of ds
        assert (np.abs(np.asarray(a) - result) <= 2.0**-8 * size + 1e-6).all()


# Small logits, which need no running maximum, and large ones.
@pytest.mark.parametrize("size", [1, 30])
@pytest.mark.parametrize("name", EACH_ROUNDED)
def test_rounded_weights_add_up_to_one(choose, name, size):
    choose(name)
    q, k = size * draw(1, 300, 2, 32), draw(1, 300, 2, 32, seed=1)
    found = jax.jit(rounded_attention)(q, k, np.ones_like(k))
    np.testing.assert_allclose(found, np.ones_like(k), atol=1e-6)


@pytest.mark.parametrize("name", EACH_ROUNDED)
def test_rounded_attention_to_a_single_key_returns_its_value(choose, name):
    choose(name)
    q, k, v, dout = (draw(1, 300, 2, 32, seed=seed) for seed in range(4))
    attend = functools.partial(rounded_attention, window=1)
    out, dq, dk, dv = along(attend, q, k, v, dout)
    np.testing.assert_allclose(out, as_bfloat16(v), rtol=1e-6)
    np.testing.assert_allclose(dv, as_bfloat16(dout), rtol=1e-6)
    # dP - delta: two sums of the same 32 products, in another order
    for found in (dq, dk):
        np.testing.assert_allclose(found, np.zeros_like(found), atol=2e-5)


@pytest.mark.parametrize("name", EACH_ROUNDED)
def test_gradients_of_rounded_attention_are_close_where_keys_have_a_common_mean(choose, name):
    """The gradients of a query's logits add up to zero, so the mean key must not matter."""
    choose(name)
    q, dout = draw(1, 256, 2, 32), draw(1, 256, 2, 32, seed=3)
    k, v = (draw(1, 256, 2, 32, seed=s) + np.float32(3) for s in (1, 2))
    gradients = (
        along(attend, q, k, v, dout)[1:] for attend in (rounded_attention, exact_attention)
    )
    for found, wanted in zip(*gradients, strict=True):
        error = np.asarray(found - wanted)
        assert np.sqrt((error**2).mean()) < 0.03 * np.asarray(wanted).std()


def test_rounded_attention_without_a_kernel_is_that_of_blocks_in_bfloat16():
    arrays = [draw(1, 200, 2, 16, seed=s) for s in range(3)]
    interaction, params = Interaction(scores=capped(dot_product)), {"softcap": jnp.float32(5.0)}

    def run(backend, q, k, v, low_precision=False):
        inputs = Inputs((q,), (k,), v, params=params)
        attend = functools.partial(backend.attend_bands, interaction, low_precision=low_precision)
        return jax.jit(attend)(inputs).astype(np.float32)

    found, exact = run(CPU, *arrays, low_precision=True), run(BLOCKWISE, *arrays)
    wanted = run(BLOCKWISE, *(x.astype(jnp.bfloat16) for x in arrays))
    np.testing.assert_array_equal(found, wanted)
    assert 1e-4 < np.abs(found - exact).max() < 2e-2
