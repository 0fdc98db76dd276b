"""The kernels in C++ against float64, at sizes that fill no block; what runs without them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import cpu
from rope_jax.attention.backends import BACKENDS
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import check_backend, resolve_model
from rope_jax.errors import UserError
from rope_jax.kernels import loading, projections
from rope_jax.kernels.gated import gated_feed_forward
from rope_jax.kernels.loading import has_amx
from rope_jax.kernels.norms import rms_norm
from rope_jax.kernels.projections import project
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.rope import Frequencies, Rotary
from tests.compiled import needs_kernels
from tests.kernels.arrays import EACH, EACH_ROUNDED, along, as_bfloat16, cases, draw, feed_forward
from tests.model.reference import loud_params

pytestmark = needs_kernels

# tokens, inputs and outputs of products
SIZES = [(1, 1, 1), (7, 5, 3), (256, 128, 64), (300, 129, 65), (513, 40, 257), (130, 400, 790)]


def rounded_product(x, kernel):
    return project(x, kernel, True)


def rounded_feed_forward(x, w_gate, w_up, w_down):
    return gated_feed_forward(x, w_gate, w_up, w_down, True)


@pytest.mark.parametrize(("name", "sizes"), cases(SIZES, (1, 3, 5), EACH_ROUNDED))
def test_products_are_those_of_float64_and_of_rounded_factors(choose, name, sizes):
    choose(name)
    tokens, inputs, outputs = sizes
    arrays = draw(tokens, inputs), draw(inputs, outputs), draw(tokens, outputs, seed=1)
    for product, wide in ((project, np.float64), (rounded_product, as_bfloat16)):
        x, kernel, dy = map(wide, arrays)
        found = along(product, *arrays)
        for a, b in zip(found, (x @ kernel, dy @ kernel.T, x.T @ dy), strict=True):
            assert a.dtype == jnp.float32
            # no rounding but that of the factors, and of sums: by 6e-8 of what was added so far
            np.testing.assert_allclose(a, b, atol=1e-6 + 2e-7 * max(sizes))


WIDER = [*SIZES, (1500, 70, 33), (1500, 70, 34), (130, 9000, 40)]


@pytest.mark.parametrize(("name", "sizes"), cases(WIDER, (2, 3, 7), EACH_ROUNDED))
def test_feed_forwards_are_those_of_float64_and_of_rounded_factors(choose, name, sizes):
    choose(name)
    tokens, inputs, hidden_size = sizes
    w_gate, w_up = (draw(inputs, hidden_size, seed=s) / np.float32(inputs**0.5) for s in (2, 3))
    w_down = draw(hidden_size, inputs, seed=4) / np.float32(hidden_size**0.5)
    arrays = draw(tokens, inputs), w_gate, w_up, w_down, draw(tokens, inputs, seed=1)
    wide = [np.float64(a) for a in arrays]
    for a, b in zip(along(gated_feed_forward, *arrays), feed_forward(*wide), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6 * np.abs(b).max())
    if hidden_size % 2 == 1 or max(sizes) > 1500:
        return
    found = along(rounded_feed_forward, *arrays)
    for a, b in zip(found, feed_forward(*wide, rounded=as_bfloat16), strict=True):
        # a difference in the last digit may round a factor of the next product the other way
        error = a - b
        assert np.sqrt((error**2).mean()) < 1e-4 * np.abs(b).max()
        np.testing.assert_allclose(a, b, atol=2e-3 * np.abs(b).max())


@pytest.mark.parametrize("name", EACH)
def test_silu_of_any_finite_number_is_that_of_jax(choose, name):
    choose(name)
    gates = [0.0, -0.0, 1e-30, -1e-3, 5.0, -20.0, 86.0, -86.0, 90.0, -90.0, 1e30, -1e30]
    x = np.array([gates, [1.0] * len(gates)], np.float32).T  # gate is the first, and up is 1
    weights = (np.array(w, np.float32) for w in ([[1.0], [0]], [[0], [1.0]], [[1.0, 1.0]]))
    ones = np.array([[1.0, 0]] * len(gates), np.float32)
    y, dx, *_ = along(gated_feed_forward, x, *weights, ones)
    wanted, slopes = along(jax.nn.silu, x[:, 0], ones[:, 0])
    np.testing.assert_allclose(y[:, 0], wanted, rtol=3e-7, atol=1e-35)
    # beside 1, nothing is left of a slope below float32's resolution
    np.testing.assert_allclose(dx[:, 0], slopes, rtol=3e-7, atol=1e-35)


@pytest.mark.parametrize("name", EACH)
def test_a_number_that_is_none_makes_its_own_token_none(choose, name):
    choose(name)
    x, weights = draw(40, 6), (draw(6, 33), draw(6, 33, seed=1), draw(33, 6, seed=2))
    x[7, 2] = np.nan
    y = jax.jit(gated_feed_forward)(x, *weights)
    np.testing.assert_array_equal(np.isnan(y).any(1), np.arange(40) == 7)
    q = draw(1, 200, 1, 16)
    k = q.copy()
    k[0, 120, 0, 3] = np.nan
    out = jax.jit(BACKENDS["cpu"].attend)(q, k, q)
    np.testing.assert_array_equal(np.isnan(out).any((0, 2, 3)), np.arange(200) >= 120)


@pytest.mark.parametrize("name", EACH)
def test_the_result_does_not_depend_on_other_tokens(choose, name):
    choose(name)
    x, weights = draw(700, 48), (draw(48, 100), draw(48, 100, seed=1), draw(100, 48, seed=2))
    run = jax.jit(gated_feed_forward)
    every = run(x, *weights)
    # without what a backward pass would read, and with it
    np.testing.assert_array_equal(along(gated_feed_forward, x, *weights, x)[0], every)
    for count in (128, 131, 699):
        np.testing.assert_array_equal(run(x[:count], *weights), every[:count])


def normalized(x, scale):
    return rms_norm(x, scale, 1e-5)


@pytest.mark.parametrize(
    ("name", "sizes"), cases([(1, 1), (5, 3), (128, 64), (300, 70), (513, 129)], (1, 3, 4))
)
def test_norms_are_those_of_float64(choose, name, sizes):
    choose(name)
    arrays = draw(*sizes), draw(sizes[1], seed=1), draw(*sizes, seed=2)
    found = along(normalized, *arrays)
    x, scale, dy = (np.float64(a) for a in arrays)
    r = 1 / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)
    g = dy * scale
    wanted = x * r * scale, r * (g - x * r**2 * (g * x).mean(1, keepdims=True)), (dy * x * r).sum(0)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=3e-5)


def test_auto_is_the_kernel_where_it_was_compiled_and_else_xla(monkeypatch):
    auto = ModelConfig(attention="auto")
    assert resolve_model(auto, "cpu").attention == "cpu"
    assert resolve_model(auto, "tpu").attention == resolve_model(auto, "gpu").attention == "xla"
    assert resolve_model(ModelConfig(attention="linear"), "cpu").attention == "linear"
    monkeypatch.setattr(cpu, "load_kernels", lambda: None)
    assert resolve_model(auto, "cpu").attention == "xla"
    assert resolve_model(auto, "cpu", "blockwise").attention == "blockwise"
    with pytest.raises(UserError, match=r"^model\.attention: cpu was not compiled; install"):
        check_backend(ModelConfig(attention="cpu"), "cpu")


def test_without_kernels_values_and_gradients_are_the_same(choose, monkeypatch):
    choose("best")
    arrays = draw(200, 6), draw(6, 6), draw(6, 8, seed=2), draw(6, 8, seed=3), draw(8, 6, seed=4)

    def everything(x, square, w_gate, w_up, w_down):
        x = rms_norm(project(x, square), jnp.ones(6), 1e-5)
        return gated_feed_forward(x, w_gate, w_up, w_down)

    def lowered():
        return jax.jit(lambda *a: along.__wrapped__(everything, *a)).lower(*arrays, arrays[0])

    kernels = lowered()
    assert "custom_call" in kernels.as_text()
    monkeypatch.setattr("rope_jax.kernels.projections.load_kernels", lambda: None)
    monkeypatch.setattr(loading, "load_kernels", lambda: None)
    plain = lowered()
    assert "custom_call" not in plain.as_text()
    results = (made.compile()(*arrays, arrays[0]) for made in (kernels, plain))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_hidden_layer_of_odd_size_has_no_kernel_that_rounds(choose):
    choose("best")
    arrays = draw(9, 4), draw(4, 3), draw(4, 3), draw(3, 4)
    with pytest.raises(jax.errors.JaxRuntimeError, match="in rows of even length"):
        jax.block_until_ready(jax.jit(rounded_feed_forward)(*arrays))
    sizes = {"hidden_size": 8, "intermediate_size": 5, "num_hidden_layers": 1}
    config = ModelConfig(**sizes, num_attention_heads=2, product_dtype="bfloat16")
    model = LanguageModel(resolve_model(config).spec(), 8)
    rotary, tokens = Rotary.shared(Frequencies.from_float64(np.ones(2))), np.zeros((1, 6), np.int32)
    windows = DecoderInputs(tokens, tokens, np.arange(6)[None], None, rotary)
    assert np.isfinite(jax.jit(model.nll)(loud_params(model), windows)).all()


@pytest.mark.parametrize("low_precision", [False, True])
@pytest.mark.parametrize(
    ("x_dtype", "columns"), [("float32", 6), ("bfloat16", 6), ("bfloat16", 5), ("float64", 6)]
)
def test_results_have_the_dtypes_of_what_is_multiplied(choose, x_dtype, columns, low_precision):
    choose("best")
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        x, kernel = draw(9, columns).astype(jnp.dtype(x_dtype)), draw(columns, 4)

        @jax.jit
        def product(x, kernel):
            y, pull_back = jax.vjp(lambda x, kernel: project(x, kernel, low_precision), x, kernel)
            return y, *pull_back(y)

        y, dx, dkernel = product(x, kernel)
    assert y.dtype == dx.dtype == x.dtype
    assert dkernel.dtype == kernel.dtype
    np.testing.assert_allclose(np.float64(y), np.float64(x) @ np.float64(kernel), atol=0.05)


@pytest.mark.parametrize("name", EACH_ROUNDED)
def test_rounding_is_to_the_nearest_and_keeps_what_is_not_a_number(choose, name):
    choose(name)
    run, step = jax.jit(rounded_product), 2.0**-7  # of bfloat16 above 1
    numbers = [1 + step / 2, 1 + 3 * step / 2, 1 + step / 2 + 1e-6, -1 - 3 * step / 2, 3.4e38, 0]
    x = np.array(numbers, np.float32)[:, None]
    found = run(x, np.ones((1, 1), np.float32))
    np.testing.assert_array_equal(found, as_bfloat16(x))
    assert float(found[1, 0]) == 1 + 2 * step  # a tie goes to the even one
    for bits in (0x7F800001, 0x7FC00000, 0xFFFFFFFF):
        x = np.ones((9, 5), np.float32)
        x[4, 2] = np.uint32(bits).view(np.float32)
        np.testing.assert_array_equal(np.isnan(run(x, draw(5, 33))).any(1), np.arange(9) == 4)


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
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert has_amx(tmp_path / "cpuinfo") == has
    assert not has_amx(tmp_path / "missing")
    for limit, allows in (("avx512_bf16", False), ("AMX_FP16", has)):
        monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_max_isa=AVX2 --xla_cpu_max_isa={limit}")
        assert has_amx(tmp_path / "cpuinfo") == allows
    monkeypatch.setattr("rope_jax.config.resolve.has_amx", lambda: has)
    monkeypatch.setattr("rope_jax.config.resolve.load_kernels", lambda: "avx512")
    auto = ModelConfig(product_dtype="auto")
    narrow = ModelConfig(dtype="bfloat16")
    for model, slow in ((auto, None), (narrow, "float32")):
        assert resolve_model(model, "cpu").product_dtype == ("bfloat16" if has else slow)
        assert resolve_model(model, "gpu").product_dtype is None
    assert resolve_model(ModelConfig(), "cpu").product_dtype is None
    monkeypatch.setattr("rope_jax.config.resolve.load_kernels", lambda: "avx512_bf16")
    assert resolve_model(auto, "cpu").product_dtype == "bfloat16"
