"""The kernels in C++: every instruction set against float64, at sizes that fill no block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import BACKENDS
from rope_jax.attention.cpu import banded_cpu
from rope_jax.attention.dense import banded_dense
from rope_jax.blocks.gated import gated_feed_forward
from rope_jax.config.model import ModelConfig
from rope_jax.errors import UserError
from rope_jax.kernels import loading, projections
from rope_jax.kernels.norms import rms_norm
from rope_jax.kernels.projections import project
from rope_jax.model.decoder import LanguageModel
from rope_jax.model.resolve import check_backend, resolve_model
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.mask import BandMask
from rope_jax.rope import Frequencies, Rotary
from tests.kernels.arrays import SIZES, along, draw

pytestmark = pytest.mark.skipif(loading.load_kernels() is None, reason="there is no C++ compiler")


@pytest.mark.parametrize("sizes", SIZES)
def test_projections_are_those_of_float64(instruction_set, few_tokens, sizes):
    tokens, inputs, outputs = sizes
    x, kernel, dy = draw(tokens, inputs), draw(inputs, outputs), draw(tokens, outputs, seed=1)
    found = along(project, x, kernel, dy)
    x, kernel, dy = (np.asarray(a, np.float64) for a in (x, kernel, dy))
    for a, b in zip(found, (x @ kernel, dy @ kernel.T, x.T @ dy), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("sizes", [*SIZES, (1500, 70, 33), (130, 9000, 40)])
def test_feed_forwards_are_those_of_float64(instruction_set, few_tokens, sizes):
    tokens, inputs, hidden_size = sizes
    x, dy = draw(tokens, inputs) * 3, draw(tokens, inputs, seed=1)
    w_gate, w_up = (draw(inputs, hidden_size, seed=s) / inputs**0.5 for s in (2, 3))
    w_down = draw(hidden_size, inputs, seed=4) / hidden_size**0.5
    arrays = x, w_gate, w_up, w_down, dy
    found = along(gated_feed_forward, *arrays)
    alone = jax.jit(gated_feed_forward)(*arrays[:-1])  # without what a backward pass would read
    np.testing.assert_array_equal(alone, found[0])
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(a, np.float64)) for a in arrays]
        in_float64 = along(lambda x, g, u, d: (jax.nn.silu(x @ g) * (x @ u)) @ d, *wide)
        wanted = [np.asarray(a) for a in in_float64]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6 * np.abs(b).max())


def test_silu_of_any_finite_number_is_that_of_jax(instruction_set, few_tokens):
    gates = [0.0, -0.0, 1e-30, -1e-3, 5.0, -20.0, 86.0, -86.0, 90.0, -90.0, 1e30, -1e30]
    x = jnp.asarray(gates, jnp.float32)[:, None]
    x = jnp.concatenate([x, jnp.ones_like(x)], 1)  # so that gate is the first, and up is 1
    w_gate, w_up, w_down = jnp.asarray([[1.0], [0]]), jnp.asarray([[0], [1.0]]), jnp.ones((1, 2))

    def silu(x):
        return gated_feed_forward(x, w_gate, w_up, w_down)[:, 0]

    found, pull_back = jax.vjp(silu, x)
    wanted, wanted_pull_back = jax.vjp(jax.nn.silu, x[:, 0])
    ones = jnp.ones_like(wanted)
    np.testing.assert_allclose(found, wanted, rtol=3e-7, atol=1e-35)
    # beside 1, nothing is left of a slope below float32's resolution
    slopes, wanted_slopes = pull_back(ones)[0][:, 0], wanted_pull_back(ones)[0]
    np.testing.assert_allclose(slopes, wanted_slopes, rtol=3e-7, atol=1e-35)


def test_a_gate_that_is_not_a_number_makes_its_own_token_none(instruction_set, few_tokens):
    x = draw(40, 6).at[7, 2].set(np.nan)
    y = gated_feed_forward(x, draw(6, 33), draw(6, 33, seed=1), draw(33, 6, seed=2))
    np.testing.assert_array_equal(np.isnan(y).any(1), np.arange(40) == 7)


def test_the_result_does_not_depend_on_other_tokens(instruction_set):
    x, weights = draw(700, 48), (draw(48, 100), draw(48, 100, seed=1), draw(100, 48, seed=2))
    whole = jax.jit(gated_feed_forward)(x, *weights)
    for count in (128, 131, 699):
        found = jax.jit(gated_feed_forward)(x[:count], *weights)
        np.testing.assert_array_equal(found, whole[:count])


@pytest.mark.parametrize("sizes", [(1, 1), (5, 3), (128, 64), (300, 70), (513, 129)])
def test_norms_are_those_of_float64(instruction_set, sizes):
    x, scale, dy = draw(*sizes), draw(sizes[1], seed=1), draw(*sizes, seed=2)
    y, pull_back = jax.vjp(lambda x, scale: rms_norm(x, scale, 1e-5), x, scale)
    found = y, *pull_back(dy)
    x, scale, dy = (np.asarray(a, np.float64) for a in (x, scale, dy))
    r = 1 / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)
    g = dy * scale
    wanted = x * r * scale, r * (g - x * r**2 * (g * x).mean(1, keepdims=True)), (dy * x * r).sum(0)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=3e-5)


# Widths that fill no vector, values narrower than keys, grouped heads, one query, several chunks of
# keys, and more queries than a span has.
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 2, 1, 3, 5),
        (2, 33, 70, 4, 2, 20, 12),
        (1, 300, 700, 2, 2, 17, 17),
        (3, 64, 64, 6, 2, 32, 33),
        (1, 1100, 1100, 1, 1, 8, 8),
    ],
)
@pytest.mark.parametrize("size", [1, 30], ids=["small logits", "large logits"])
def test_attention_is_that_of_whole_matrices(instruction_set, sizes, size):
    batch, queries, keys, heads, kv_heads, width, value_width = sizes
    q, k = draw(batch, queries, heads, width) * size, draw(batch, keys, kv_heads, width, seed=1)
    v = draw(batch, keys, kv_heads, value_width, seed=2)
    dout = draw(batch, queries, heads, value_width, seed=3)
    ids = jnp.asarray(np.random.default_rng(4).random((batch, keys)).cumsum(1) // 30, jnp.int32)

    def value_and_gradients(attention, window, ids):
        out, pull_back = jax.vjp(lambda *a: attention(*a, ids, window), q, k, v)
        return out, *pull_back(dout)

    for window, documents in ((None, None), (50, None), (None, ids), (3, ids)):
        found = value_and_gradients(BACKENDS["cpu"].attend, window, documents)
        wanted = value_and_gradients(BACKENDS["xla"].attend, window, documents)
        for a, b in zip(found, wanted, strict=True):
            # gradients grow with the size, and so do logits, whose rounding changes the weights
            np.testing.assert_allclose(a, b, atol=2e-5 * size**1.5)


# Near and far keys, of which the first queries see none that are far; sinks; chunks, of which one
# band sees none at all.
@pytest.mark.parametrize(
    "bands",
    [
        (BandMask(beyond=50), BandMask(nearest=50)),
        (BandMask(beyond=20), BandMask(nearest=20, first=4)),
        (
            BandMask(chunk=30, chunks_back=(0, 0)),
            BandMask(chunk=30, chunks_back=(1, 1)),
            BandMask(chunk=30, chunks_back=(2, None)),
            BandMask(nearest=10_000),
        ),
    ],
    ids=["near and far", "sinks", "chunks"],
)
@pytest.mark.parametrize("documents", [False, True])
def test_bands_are_those_of_whole_matrices(instruction_set, bands, documents):
    queries = tuple(draw(2, 150, 4, 16, seed=i) for i in range(len(bands)))
    keys = tuple(draw(2, 170, 2, 16, seed=10 + i) for i in range(len(bands)))
    v, dout = draw(2, 170, 2, 12, seed=2), draw(2, 150, 4, 12, seed=3)
    ids = None
    if documents:
        ids = jnp.asarray(np.random.default_rng(4).random((2, 170)).cumsum(1) // 40, jnp.int32)

    def value_and_gradients(attention):
        def attend(*arrays):
            return attention(*arrays, ids, Interaction(bands), {})

        out, pull_back = jax.vjp(attend, queries, keys, v)
        return jax.tree.leaves((out, pull_back(dout)))

    found, wanted = value_and_gradients(banded_cpu), value_and_gradients(banded_dense)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_the_shares_of_bands_add_up_to_one_however_large_the_logits():
    q, v = jnp.full((1, 100, 1, 4), 50.0), jnp.ones((1, 100, 1, 4))  # logits of 5,000
    bands = Interaction((BandMask(beyond=30), BandMask(nearest=30)))
    found = banded_cpu((q, q), (q, q), v, None, bands, {})
    np.testing.assert_allclose(found, v, atol=1e-6)


def test_results_do_not_depend_on_the_order_in_which_threads_work():
    q, dout = draw(2, 700, 3, 16), draw(2, 700, 3, 16, seed=1)
    run = jax.jit(lambda q, dout: jax.vjp(BACKENDS["cpu"].attend, q, q, q)[1](dout))
    first = run(q, dout)
    for _ in range(5):
        assert all(np.array_equal(a, b) for a, b in zip(first, run(q, dout), strict=True))


def test_a_number_that_is_none_does_not_disappear(instruction_set):
    q = draw(1, 200, 1, 16)
    out = BACKENDS["cpu"].attend(q, q.at[0, 120, 0, 3].set(jnp.nan), q)
    assert np.isfinite(out[0, :120]).all()
    assert np.isnan(out[0, 120:]).all()


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_weights_are_exact_to_float32(instruction_set, size):
    """Over the range of logits that a softmax sees, from equal ones to a single one."""
    q, k = draw(1, 512, 1, 4) * np.float32(size), draw(1, 512, 1, 4, seed=1)
    found = BACKENDS["cpu"].attend(q, k, jnp.broadcast_to(jnp.eye(512)[:, None], (1, 512, 1, 512)))
    logits = np.einsum("th,sh->ts", *(np.asarray(x[0, :, 0], np.float64) for x in (q, k))) / 2
    logits = np.where(np.tri(512, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    # a logit's own rounding, relative to the weight, and what underflows
    error = np.abs(np.asarray(found[0, :, 0]) - weights) / (weights + 1e-30)
    assert error[weights > 1e-30].max() < 4e-7 * (10 + size * 20)


def test_vmap_computes_each_element():
    q = draw(3, 1, 40, 2, 8)
    found = jax.jit(jax.vmap(lambda q: BACKENDS["cpu"].attend(q, q, q)))(q)
    for a, b in zip(found, q, strict=True):
        np.testing.assert_array_equal(a, BACKENDS["cpu"].attend(b, b, b))


def test_auto_is_the_kernel_where_it_was_compiled_and_else_xla(monkeypatch):
    auto = ModelConfig(attention="auto")
    assert resolve_model(auto, "cpu").attention == "cpu"
    assert resolve_model(auto, "cpu", "blockwise").attention == "cpu"
    assert resolve_model(auto, "tpu").attention == resolve_model(auto, "gpu").attention == "xla"
    assert resolve_model(ModelConfig(attention="linear"), "cpu").attention == "linear"
    with pytest.raises(UserError, match=r"^model\.attention: cpu needs a CPU, but the platform"):
        check_backend(ModelConfig(attention="cpu"), "gpu")
    monkeypatch.setattr("rope_jax.kernels.loading.load_kernels", lambda: None)
    assert resolve_model(auto, "cpu").attention == "xla"
    assert resolve_model(auto, "cpu", "blockwise").attention == "blockwise"
    with pytest.raises(UserError, match=r"^model\.attention: cpu was not compiled; install"):
        check_backend(ModelConfig(attention="cpu"), "cpu")


def test_without_kernels_products_are_xlas(monkeypatch):
    x, kernel = draw(200, 4), draw(4, 6)
    loss = jax.jit(jax.value_and_grad(lambda w: (project(x, w) ** 2).sum()))
    assert "custom_call" in loss.lower(kernel).as_text()
    wanted = loss(kernel)
    monkeypatch.setattr(projections, "load_kernels", lambda: None)
    jax.clear_caches()
    assert "custom_call" not in loss.lower(kernel).as_text()
    for a, b in zip(loss(kernel), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_model_without_kernels_has_the_same_losses(monkeypatch):
    config = ModelConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, attention="xla")
    model = LanguageModel(resolve_model(config), 64)
    params = model.init(0)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (2, 80)), jnp.int32)
    rotary = Rotary.shared(Frequencies.from_float64(10.0 ** -np.arange(config.heads_width // 2)))

    def loss(params):
        positions = jnp.arange(79)[None]
        nll = model.nll(params, tokens[:, :-1], tokens[:, 1:], positions, None, rotary)
        return nll.mean()

    found = jax.jit(jax.value_and_grad(loss))(params)
    monkeypatch.setattr(projections, "load_kernels", lambda: None)
    jax.clear_caches()
    wanted = jax.jit(jax.value_and_grad(loss))(params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
