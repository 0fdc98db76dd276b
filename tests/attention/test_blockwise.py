"""Attention in blocks: gradients, custom scores, which blocks are skipped, and memory.

Shapes: B batch, T length, N heads, K key-value heads, H head dim.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import BACKENDS
from rope_jax.attention.blockwise import banded_blockwise
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.mask import BandMask
from tests.programs import equations

pytestmark = pytest.mark.usefixtures("compiled_quickly")

H = 8


def inputs(length, heads, kv_heads, batch=2):
    """Return q, k, v, and segments of about 20 tokens, different in every row."""
    rng = np.random.default_rng(length)
    shapes = [(batch, length, n, H) for n in (heads, kv_heads, kv_heads)]
    q, k, v = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
    return q, k, v, jnp.asarray(np.cumsum(rng.random((batch, length)) < 0.05, axis=1), jnp.int32)


def test_gradients_match_xla_with_documents_and_grouped_heads():
    q, k, v, segment_ids = inputs(200, 4, 2)
    by_blocks = functools.partial(BACKENDS["blockwise"].attend, block=48)

    def squared(f):
        return jax.jit(
            jax.grad(lambda *x: (f(*x, segment_ids, None) ** 2).sum(), argnums=(0, 1, 2))
        )

    found, wanted = squared(by_blocks)(q, k, v), squared(BACKENDS["xla"].attend)(q, k, v)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def alibi(slopes, q, k, query_index, key_index):
    """A bias: −slope · distance."""
    distance = (query_index[:, None] - key_index[None]).astype(jnp.float32)
    scores = jnp.einsum("bkgth,bksh->bkgts", q, k)
    return scores - slopes.reshape(1, k.shape[1], -1, 1, 1) * distance[None, None, None]


def near_and_far(scale, q, k, query_index, key_index):
    """A position map: queries are multiplied for keys at least 20 tokens away."""
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
def test_custom_scores_and_their_gradients_match_plain_attention(scores, argument):
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
        interaction = Interaction(scores=scores)
        return banded_blockwise((q,), (k,), v, segment_ids, interaction, argument, block=32)

    np.testing.assert_allclose(
        jax.jit(ours)(argument, q, k, v), jax.jit(plain)(argument, q, k, v), atol=2e-6
    )

    def gradients(f):
        return jax.jit(jax.grad(lambda *x: (f(*x) ** 2).sum(), argnums=(0, 1, 2, 3)))

    found, wanted = (gradients(f)(argument, q, k, v) for f in (ours, plain))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5)


def test_vmap_of_gradients_keeps_one_loop_condition_for_all_rows():
    q, k, v, _ = inputs(150, 2, 1, batch=3)

    def loss(q, k, v):
        return (BACKENDS["blockwise"].attend(q, k, v, block=48) ** 2).sum()

    each = [x[:, None] for x in (q, k, v)]
    one_by_one = jax.vmap(jax.grad(loss, argnums=(0, 1, 2)))
    found = jax.jit(one_by_one)(*each)
    wanted = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a[:, 0], b, atol=1e-6)
    # If a loop's end depended on the row, vmap would give it a condition per row: [3] booleans.
    loops = [e for e in equations(jax.make_jaxpr(one_by_one)(*each)) if e.primitive.name == "while"]
    assert len(loops) == 2
    for loop in loops:
        assert loop.params["cond_jaxpr"].out_avals[0].shape == ()


NEAR_TO_FAR = BandMask(beyond=64), BandMask(nearest=64)
WITH_SINKS = BandMask(beyond=64), BandMask(nearest=64, first=4)


@pytest.mark.parametrize(
    ("bands", "wanted"),
    [
        ((BandMask(),), [(i, j) for i in range(4) for j in range(i + 1)]),
        ((BandMask(beyond=65),), [(i, j) for i in range(4) for j in range(max(0, i - 1), i + 1)]),
        # the border crosses the block before the diagonal, which both bands need
        (NEAR_TO_FAR, [(i, j) for i in range(4) for j in [*range(i + 1), i - 1] if j >= 0]),
        # far keys are sinks, all in the first block
        (
            WITH_SINKS,
            [(i, j) for i in range(4) for j in (i - 1, i) if j >= 0] + [(i, 0) for i in (1, 2, 3)],
        ),
    ],
    ids=["causal", "window", "near and far", "sinks"],
)  # fmt: skip
def test_only_the_blocks_that_a_band_needs_are_computed(bands, wanted):
    computed = []

    def record(i, j):
        computed.append((int(i) // 64, int(j) // 64))

    def recorded(argument, q, k, query_index, key_index):
        jax.debug.callback(record, query_index[0], key_index[0])
        return jnp.einsum("bkgth,bksh->bkgts", q, k)

    q, k, v, _ = inputs(256, 1, 1, batch=1)
    every = (q,) * len(bands), (k,) * len(bands)
    interaction = Interaction(bands, recorded)
    jax.block_until_ready(banded_blockwise(*every, v, None, interaction, {}, block=64))
    jax.effects_barrier()
    assert sorted(computed) == sorted(wanted)


def test_program_size_is_constant_and_memory_is_linear_in_length():
    def loss(q, k, v):
        return BACKENDS["blockwise"].attend(q, k, v).sum()

    sizes, bytes_used = [], []
    for length in (4096, 16384):
        shapes = [jax.ShapeDtypeStruct((1, length, n, H), np.float32) for n in (2, 1, 1)]
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        sizes.append(len(list(equations(jax.make_jaxpr(program)(*shapes)))))
        memory = program.lower(*shapes).compile().memory_analysis()
        bytes_used.append(memory.temp_size_in_bytes)
    assert sizes[0] == sizes[1]
    assert bytes_used[1] < 4.4 * bytes_used[0]
    # A full array of logits would take 2 GiB.
    assert bytes_used[1] < 64 * 2**20
