"""Products of factors rounded to bfloat16: every instruction set, and where there is no kernel."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import BACKENDS
from rope_jax.attention.blockwise import banded_blockwise
from rope_jax.attention.cpu import banded_cpu
from rope_jax.blocks.gated import gated_feed_forward
from rope_jax.config.model import ModelConfig
from rope_jax.kernels import loading, projections
from rope_jax.kernels.gated import hidden_layer
from rope_jax.kernels.loading import has_amx
from rope_jax.kernels.projections import project
from rope_jax.model.decoder import LanguageModel
from rope_jax.model.resolve import resolve_model
from rope_jax.positions.interaction import Interaction, capped, dot_product
from rope_jax.rope import Frequencies, Rotary
from tests.kernels.arrays import SIZES, along, draw

pytestmark = pytest.mark.skipif(loading.load_kernels() is None, reason="there is no C++ compiler")


def rounded_product(x, kernel):
    return project(x, kernel, True)


def as_bfloat16(x):
    """The nearest numbers of bfloat16, in float64."""
    return np.asarray(x.astype(jnp.bfloat16), np.float64)


@pytest.mark.parametrize("sizes", [*SIZES, (300, 40, 24), (129, 70, 31)])
def test_rounded_products_have_float32_sums(rounding_set, few_tokens, sizes):
    tokens, inputs, outputs = sizes
    x, kernel, dy = draw(tokens, inputs), draw(inputs, outputs), draw(tokens, outputs, seed=1)
    found = along(rounded_product, x, kernel, dy)
    x, kernel, dy = as_bfloat16(x), as_bfloat16(kernel), as_bfloat16(dy)
    for a, wanted in zip(found, (x @ kernel, dy @ kernel.T, x.T @ dy), strict=True):
        assert a.dtype == jnp.float32
        # no rounding but that of the factors; longer sums are larger
        np.testing.assert_allclose(a, wanted, atol=2e-5 if max(sizes) <= 300 else 1e-4)


@pytest.mark.parametrize("sizes", [(7, 5, 2), (300, 129, 66), (1500, 70, 34), (130, 400, 790)])
def test_rounded_feed_forwards_round_nothing_but_factors(rounding_set, few_tokens, sizes):
    tokens, inputs, hidden_size = sizes
    x, dy = draw(tokens, inputs), draw(tokens, inputs, seed=1)
    w_gate, w_up = (draw(inputs, hidden_size, seed=s) / inputs**0.5 for s in (2, 3))
    w_down = draw(hidden_size, inputs, seed=4) / hidden_size**0.5

    def of_products(x, w_gate, w_up, w_down):
        hidden = jax.nn.silu(rounded_product(x, w_gate)) * rounded_product(x, w_up)
        return rounded_product(hidden, w_down)

    def of_kernels(x, w_gate, w_up, w_down):
        return gated_feed_forward(x, w_gate, w_up, w_down, True)

    arrays = x, w_gate, w_up, w_down, dy
    found, wanted = along(of_kernels, *arrays), along(of_products, *arrays)
    alone = jax.jit(of_kernels)(*arrays[:-1])
    np.testing.assert_array_equal(alone, found[0])
    for a, b in zip(found, wanted, strict=True):
        # a difference in the last digit may round a factor of the next product the other way
        error = np.asarray(a - b)
        assert np.sqrt((error**2).mean()) < 1e-4 * np.abs(b).max()
        np.testing.assert_allclose(a, b, atol=2e-3 * np.abs(b).max())


def softmax_attention(q, k, v, dout, seen):
    """Attention of one head in float64, and its gradients: (result, Σ of its terms' sizes) each.

    The sizes say how much an error of each factor can matter.
    """
    scale = q.shape[1] ** -0.5
    logits = np.where(seen, q @ k.T * scale, -np.inf)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    out, out_size = weights @ v, weights @ np.abs(v)
    ds = weights * (dout @ v.T - (dout * out).sum(1, keepdims=True)) * scale
    shift = (np.abs(dout) * out_size).sum(1, keepdims=True)
    ds_size = weights * (np.abs(dout) @ np.abs(v).T + shift) * scale
    return (
        (out, out_size),
        (ds @ k, ds_size @ np.abs(k)),
        (ds.T @ q, ds_size.T @ np.abs(q)),
        (weights.T @ dout, weights.T @ np.abs(dout)),
    )


def test_a_hidden_layer_of_odd_size_has_no_kernel_that_rounds(few_tokens, monkeypatch):
    monkeypatch.setattr(projections, "has_amx", lambda: False)
    odd = draw(4, 3)
    with pytest.raises(jax.errors.JaxRuntimeError, match="in rows of even length"):
        jax.block_until_ready(hidden_layer(draw(9, 4), odd, odd, rounded=True))
    config = ModelConfig(
        **{"hidden_size": 8, "intermediate_size": 5, "num_hidden_layers": 1},
        **{"num_attention_heads": 2, "product_dtype": "bfloat16"},
    )
    model = LanguageModel(resolve_model(config), 8)
    rotary = Rotary.shared(Frequencies.from_float64(np.ones(2)))
    tokens = jnp.zeros((1, 6), jnp.int32)
    nll = model.nll(model.init(0), tokens, tokens, jnp.arange(6)[None], None, rotary)
    assert np.isfinite(nll).all()


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(
    ("x_dtype", "columns"), [("float32", 6), ("bfloat16", 6), ("bfloat16", 5), ("float64", 6)]
)
def test_results_have_the_dtypes_of_what_is_multiplied(few_tokens, x_dtype, columns, rounded):
    with jax.enable_x64(True):
        x, kernel = draw(9, columns).astype(x_dtype), draw(columns, 4)
        with jax.numpy_dtype_promotion("standard"):
            y, pull_back = jax.vjp(lambda x, kernel: project(x, kernel, rounded), x, kernel)
            dx, dkernel = pull_back(y)
    assert y.dtype == dx.dtype == x.dtype
    assert dkernel.dtype == kernel.dtype
    wanted = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64)
    np.testing.assert_allclose(np.asarray(y, np.float64), wanted, atol=0.05)


# Odd numbers of queries, keys and columns leave half of a pair empty.
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1, 1, 3, 5), (33, 70, 4, 2, 20, 12), (300, 701, 2, 2, 17, 31), (65, 65, 2, 1, 70, 9)],
)
def test_rounded_attention_rounds_nothing_but_factors(rounding_set, sizes):
    queries, keys, heads, kv_heads, width, value_width = sizes
    q, k = draw(1, queries, heads, width), draw(1, keys, kv_heads, width, seed=1)
    v = draw(1, keys, kv_heads, value_width, seed=2)
    dout = draw(1, queries, heads, value_width, seed=3)

    def attend(q, k, v):
        return BACKENDS["cpu"].attend(q, k, v, None, 200, rounded=True)

    found = along(attend, q, k, v, dout)
    q, k, v, dout = (as_bfloat16(x)[0] for x in (q, k, v, dout))
    distance = np.arange(queries)[:, None] + keys - queries - np.arange(keys)
    seen = (distance >= 0) & (distance < 200)
    groups = heads // kv_heads
    by_head = [
        softmax_attention(q[:, n], k[:, n // groups], v[:, n // groups], dout[:, n], seen)
        for n in range(heads)
    ]
    for a, is_of_keys, parts in zip(
        found, (False, False, True, True), zip(*by_head, strict=True), strict=True
    ):
        result, size = (np.stack(each, 1) for each in zip(*parts, strict=True))
        if is_of_keys:  # the heads of a group share their keys
            result, size = (x.reshape(keys, kv_heads, groups, -1).sum(2) for x in (result, size))
        # the rounding of dout·v - delta's factors, and of the probabilities or of ds
        assert (np.abs(np.asarray(a[0]) - result) <= 2.0**-8 * size + 1e-6).all()


def test_gradients_of_rounded_attention_are_close_where_keys_have_a_common_mean(rounding_set):
    """The gradients of a query's logits add up to zero, so the mean key must not matter."""
    q, dout = draw(1, 256, 2, 32), draw(1, 256, 2, 32, seed=3)
    k, v = draw(1, 256, 2, 32, seed=1) + 3, draw(1, 256, 2, 32, seed=2) + 3

    def gradients(rounded):
        def attend(q, k, v):
            return BACKENDS["cpu"].attend(q, k, v, rounded=rounded)

        return along(attend, q, k, v, dout)[1:]

    for found, wanted in zip(gradients(True), gradients(False), strict=True):
        error = np.asarray(found - wanted)
        assert np.sqrt((error**2).mean()) < 0.03 * np.asarray(wanted).std()


def test_rounded_attention_without_a_kernel_is_that_of_blocks_in_bfloat16():
    q, k, v = (draw(1, 200, 2, 16, seed=s) for s in range(3))
    interaction = Interaction(scores=capped(dot_product))
    numbers = {"softcap": jnp.float32(5.0)}
    found = banded_cpu((q,), (k,), v, None, interaction, numbers, rounded=True)
    exact = banded_blockwise((q,), (k,), v, None, interaction, numbers)
    halves = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    wanted = banded_blockwise((halves[0],), (halves[1],), halves[2], None, interaction, numbers)
    np.testing.assert_array_equal(found, wanted.astype(jnp.float32))
    assert 1e-4 < np.abs(found - exact).max() < 2e-2


def test_rounding_is_to_the_nearest_and_ties_to_even(rounding_set, few_tokens):
    step = 2.0**-7  # of bfloat16 above 1
    numbers = [1 + step / 2, 1 + 3 * step / 2, 1 + step / 2 + 1e-6, -1 - 3 * step / 2, 3.4e38, 0]
    x = jnp.asarray(numbers, jnp.float32)[:, None]
    found = project(x, jnp.ones((1, 1)), True)[:, 0]
    np.testing.assert_array_equal(found, x[:, 0].astype(jnp.bfloat16).astype(jnp.float32))
    assert float(found[1]) == 1 + 2 * step


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0xFFFFFFFF])
def test_rounding_keeps_what_is_not_a_number(rounding_set, few_tokens, bits):
    x = np.ones((9, 5), np.float32)
    x[4, 2] = np.uint32(bits).view(np.float32)
    y = project(jnp.asarray(x), draw(5, 33), True)
    np.testing.assert_array_equal(np.isnan(y).any(1), np.arange(9) == 4)


def test_xlas_rounded_products_contract_the_last_axis_with_the_first(monkeypatch):
    """Others of bfloat16 are slow on a CPU, so XLA must not fold the transposes into them."""
    monkeypatch.setattr(projections, "has_amx", lambda: True)

    def gradients(x, kernel, dy):
        return jax.vjp(rounded_product, x, kernel)[1](dy)

    made = jax.jit(gradients).lower(draw(300, 40), draw(40, 24), draw(300, 24)).compile()
    products = [line for line in made.as_text().splitlines() if re.search(r" dot\(", line)]
    assert len(products) == 2
    for line in products:
        assert "lhs_contracting_dims={1}, rhs_contracting_dims={0}" in line


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("processor : 0\nflags\t\t: fpu sse avx512f amx_bf16 amx_tile\n", True),
        ("processor : 0\nflags\t\t: fpu sse avx512f\nbugs : amx_bf16\n", False),
    ],
)
def test_auto_rounds_products_where_the_cpu_is_fast_at_it(tmp_path, monkeypatch, text, has):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert has_amx(tmp_path / "cpuinfo") == has
    assert not has_amx(tmp_path / "missing")
    monkeypatch.setattr("rope_jax.model.resolve.has_amx", lambda: has)
    monkeypatch.setattr("rope_jax.model.resolve.load_kernels", lambda: "avx512")
    auto = ModelConfig(product_dtype="auto")
    assert resolve_model(auto, "cpu").product_dtype == ("bfloat16" if has else None)
    assert resolve_model(auto, "gpu").product_dtype is None
    assert resolve_model(ModelConfig(), "cpu").product_dtype is None
    monkeypatch.setattr("rope_jax.model.resolve.load_kernels", lambda: "avx512_bf16")
    assert resolve_model(auto, "cpu").product_dtype == "bfloat16"
