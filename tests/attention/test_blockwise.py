"""Attention in blocks: custom scores, which blocks are skipped, and memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.base import Inputs
from rope_jax.attention.blockwise import Blockwise
from rope_jax.positions.interaction import Interaction, dot_product
from rope_jax.positions.mask import BandMask
from tests.attention.reference import attention, inputs, seen_keys
from tests.programs import equations


def alibi(params, block):
    """A bias: −slope · distance."""
    q, k, index = block
    distance = (index.query[:, None] - index.key[None]).astype(jnp.float32)
    scores = jnp.einsum("bkgth,bksh->bkgts", q, k)
    return scores - params["slopes"].reshape(1, k.shape[1], -1, 1, 1) * distance[None, None, None]


def test_custom_scores_and_their_gradients_match_float64():
    *arrays, dout, ids = inputs(130, 130)
    slopes = np.array([0.5, 0.1, 0.02, 0.004], np.float32)
    interaction = Interaction(scores=alibi)

    @jax.jit
    def ours(slopes, q, k, v, ids):
        def attend(slopes, q, k, v):
            bands = Inputs((q,), (k,), v, ids, params={"slopes": slopes})
            return Blockwise(32).attend_bands(interaction, bands)

        out, pull_back = jax.vjp(attend, slopes, q, k, v)
        return out, *pull_back(jnp.asarray(dout))

    def reference(slopes):
        distance = np.subtract.outer(np.arange(130), np.arange(130))
        bias = -np.float64(slopes)[None, :, None, None] * distance
        return attention(*arrays, dout, seen_keys(130, 130, 2, ids), bias)

    out, d_slopes, *gradients = ours(slopes, *arrays, ids)
    for a, b in zip((out, *gradients), reference(slopes), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5)
    for head in range(4):
        step = 1e-5 * np.eye(4)[head]
        ends = [(reference(slopes + sign * step)[0] * dout).sum() for sign in (1, -1)]
        assert float(d_slopes[head]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3)


def test_vmap_of_gradients_keeps_one_loop_condition_for_all_rows():
    q, k, v, *_ = (x[:, None] for x in inputs(150, 150, 2, 1, batch=3))

    def loss(q, k, v):
        return (Blockwise(block=48).attend(q, k, v) ** 2).sum()

    one_by_one = jax.vmap(jax.grad(loss, argnums=(0, 1, 2)))
    # If a loop's end depended on the row, vmap would give it a condition per row: [3] booleans.
    program = jax.make_jaxpr(one_by_one)(q, k, v)
    loops = [e for e in equations(program) if e.primitive.name == "while"]
    assert len(loops) == 2
    for loop in loops:
        assert loop.params["cond_jaxpr"].out_avals[0].shape == ()


@pytest.mark.parametrize(
    ("bands", "wanted"),
    [
        ((BandMask(),), [(i, j) for i in range(4) for j in range(i + 1)]),
        ((BandMask(beyond=65),), [(i, j) for i in range(4) for j in range(max(0, i - 1), i + 1)]),
        # the border crosses the block before the diagonal, which both bands need
        (
            (BandMask(beyond=64), BandMask(nearest=64)),
            [(i, j) for i in range(4) for j in [*range(i + 1), i - 1] if j >= 0],
        ),
        # queries see their own chunk, wherever it begins
        ((BandMask().within(None, 60),), [(i, j) for i in range(4) for j in (i - 1, i) if j >= 0]),
        # far keys are sinks, all in the first block
        (
            (BandMask(beyond=64), BandMask(nearest=64, first=4)),
            [(i, j) for i in range(4) for j in (i - 1, i) if j >= 0] + [(i, 0) for i in (1, 2, 3)],
        ),
    ],
    ids=["causal", "window", "near and far", "own chunks", "sinks"],
)
def test_only_the_blocks_that_a_band_needs_are_computed(bands, wanted):
    computed = []

    def recorded(params, block):
        record = lambda i, j: computed.append((int(i) // 64, int(j) // 64))  # noqa: E731
        jax.debug.callback(record, block.at.query[0], block.at.key[0])
        return dot_product(params, block)

    q, k, v, *_ = inputs(256, 256, 1, 1, batch=1)
    run = jax.jit(functools.partial(Blockwise(64).attend_bands, Interaction(bands, recorded)))
    jax.block_until_ready(run(Inputs((q,) * len(bands), (k,) * len(bands), v)))
    jax.effects_barrier()
    assert sorted(computed) == sorted(wanted)


def test_program_size_is_constant_and_memory_is_linear_in_length():
    def loss(q, k, v):
        return Blockwise().attend(q, k, v).sum()

    sizes, bytes_used = [], []
    for length in (4096, 16384):
        shapes = [jax.ShapeDtypeStruct((1, length, n, 8), np.float32) for n in (2, 1, 1)]
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        sizes.append(len(list(equations(jax.make_jaxpr(program)(*shapes)))))
        memory = program.lower(*shapes).compile().memory_analysis()
        bytes_used.append(memory.temp_size_in_bytes)
    assert sizes[0] == sizes[1]
    assert bytes_used[1] < 4.4 * bytes_used[0]
    # A full array of logits would take 2 GiB.
    assert bytes_used[1] < 64 * 2**20
