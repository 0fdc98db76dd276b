"""The kernels in C++: every instruction set against float64, at sizes that fill no block."""

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention import BACKENDS, banded_blockwise, check_backend, choose_backend
from rope_jax.attention.cpu import banded_cpu, cpu_attention
from rope_jax.attention.whole import whole_attention
from rope_jax.config.model import ModelConfig
from rope_jax.devices.hardware import has_amx
from rope_jax.errors import UserError
from rope_jax.kernels import loading, projections
from rope_jax.kernels.naming import library
from rope_jax.kernels.norms import rms_norm
from rope_jax.kernels.projections import project
from rope_jax.model.decoder import LanguageModel
from rope_jax.model.feed_forward import gated_feed_forward
from rope_jax.model.platform import model_for_platform
from rope_jax.positions.interaction import Interaction
from rope_jax.positions.scores import capped, dot_product
from rope_jax.positions.visible import Visible
from rope_jax.rope import Frequencies, Rotary

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(loading.load_kernels() is None, reason="there is no C++ compiler")


SETS = ["generic", "avx2", "avx512"]


@pytest.fixture(params=SETS)
def instruction_set(request):
    """Run the kernels for one instruction set, if this processor has it."""
    yield from chosen(request.param)


@pytest.fixture(params=[*SETS, "avx512_bf16"])
def rounding_set(request, monkeypatch):
    """The same for products of rounded factors, of which one more set has its own."""
    monkeypatch.setattr(projections, "has_amx", lambda: False)  # else they would be XLA's
    yield from chosen(request.param)


def chosen(name):
    kernels = ctypes.CDLL(str(library()))
    kernels.choose_instruction_set.restype = ctypes.c_bool
    usual = loading.load_kernels()
    if not kernels.choose_instruction_set(name.encode()):
        pytest.skip(f"this processor has no {name}, or the compiler does not know it")
    yield name
    kernels.choose_instruction_set(usual.encode())


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@pytest.fixture
def few_tokens(monkeypatch):
    """Have even a single token multiplied by the kernels."""
    monkeypatch.setattr(projections, "_FEWEST_TOKENS", 1)


def along(function, *arguments):
    """Return function(*arguments[:-1]), and its gradients along the last argument."""

    def computed(*arguments):
        y, pull_back = jax.vjp(function, *arguments[:-1])
        return y, *pull_back(arguments[-1])

    return jax.jit(computed)(*arguments)


SIZES = [(1, 1, 1), (7, 5, 3), (256, 128, 64), (300, 129, 65), (513, 40, 257), (130, 400, 790)]


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
        found = value_and_gradients(cpu_attention, window, documents)
        wanted = value_and_gradients(BACKENDS["xla"], window, documents)
        for a, b in zip(found, wanted, strict=True):
            # gradients grow with the size, and so do logits, whose rounding changes the weights
            np.testing.assert_allclose(a, b, atol=2e-5 * size**1.5)


# Near and far keys, of which the first queries see none that are far; sinks; chunks, of which one
# band sees none at all.
@pytest.mark.parametrize(
    "bands",
    [
        (Visible(beyond=50), Visible(nearest=50)),
        (Visible(beyond=20), Visible(nearest=20, first=4)),
        (
            Visible(chunk=30, chunks_back=(0, 0)),
            Visible(chunk=30, chunks_back=(1, 1)),
            Visible(chunk=30, chunks_back=(2, None)),
            Visible(nearest=10_000),
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

    found, wanted = value_and_gradients(banded_cpu), value_and_gradients(whole_attention)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_the_shares_of_bands_add_up_to_one_however_large_the_logits():
    q, v = jnp.full((1, 100, 1, 4), 50.0), jnp.ones((1, 100, 1, 4))  # logits of 5,000
    bands = Interaction((Visible(beyond=30), Visible(nearest=30)))
    found = banded_cpu((q, q), (q, q), v, None, bands, {})
    np.testing.assert_allclose(found, v, atol=1e-6)


def test_results_do_not_depend_on_the_order_in_which_threads_work():
    q, dout = draw(2, 700, 3, 16), draw(2, 700, 3, 16, seed=1)
    run = jax.jit(lambda q, dout: jax.vjp(cpu_attention, q, q, q)[1](dout))
    first = run(q, dout)
    for _ in range(5):
        assert all(np.array_equal(a, b) for a, b in zip(first, run(q, dout), strict=True))


def test_a_number_that_is_none_does_not_disappear(instruction_set):
    q = draw(1, 200, 1, 16)
    out = cpu_attention(q, q.at[0, 120, 0, 3].set(jnp.nan), q)
    assert np.isfinite(out[0, :120]).all()
    assert np.isnan(out[0, 120:]).all()


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_weights_are_exact_to_float32(instruction_set, size):
    """Over the range of logits that a softmax sees, from equal ones to a single one."""
    q, k = draw(1, 512, 1, 4) * np.float32(size), draw(1, 512, 1, 4, seed=1)
    found = cpu_attention(q, k, jnp.broadcast_to(jnp.eye(512)[:, None], (1, 512, 1, 512)))
    logits = np.einsum("th,sh->ts", *(np.asarray(x[0, :, 0], np.float64) for x in (q, k))) / 2
    logits = np.where(np.tri(512, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    # a logit's own rounding, relative to the weight, and what underflows
    error = np.abs(np.asarray(found[0, :, 0]) - weights) / (weights + 1e-30)
    assert error[weights > 1e-30].max() < 4e-7 * (10 + size * 20)


def test_vmap_computes_each_element():
    q = draw(3, 1, 40, 2, 8)
    found = jax.jit(jax.vmap(lambda q: cpu_attention(q, q, q)))(q)
    for a, b in zip(found, q, strict=True):
        np.testing.assert_array_equal(a, cpu_attention(b, b, b))


def test_auto_is_the_kernel_where_it_was_compiled_and_else_xla(monkeypatch):
    auto = ModelConfig(attention="auto")
    assert choose_backend(auto, "cpu").attention == "cpu"
    assert choose_backend(auto, "tpu").attention == choose_backend(auto, "gpu").attention == "xla"
    assert choose_backend(ModelConfig(attention="linear"), "cpu").attention == "linear"
    with pytest.raises(UserError, match=r"^model\.attention: cpu needs a CPU, but the platform"):
        check_backend(ModelConfig(attention="cpu"), "gpu")
    monkeypatch.setattr("rope_jax.attention.backends.load_kernels", lambda: None)
    assert choose_backend(auto, "cpu").attention == "xla"
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
    model = LanguageModel(config, 64)
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


def build_module(folder):
    spec = importlib.util.spec_from_file_location("build", folder / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sources(tmp_path):
    """A copy of the kernels' sources, which nothing else reads."""
    for file in (ROOT / "rope_jax" / "kernels").iterdir():
        if file.suffix in (".cc", ".h", ".py"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return build_module(tmp_path), tmp_path


def test_no_compiler_is_no_error(sources, monkeypatch):
    build, folder = sources
    (folder / "kernels-0123.so").write_bytes(b"of older sources")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert build.compile_kernels().startswith("there is no C++ compiler")
    assert not list(folder.glob("*.so"))  # it would not belong to these sources


def test_an_error_of_the_compiler_is_told_in_one_line(sources, monkeypatch):
    build, folder = sources
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'import sys; sys.exit(\"error: no luck\")'")
    assert build.compile_kernels().endswith("failed: error: no luck")
    assert not list(folder.glob("*.so*"))  # nothing half-written


@pytest.mark.parametrize(
    ("compiler", "problem"),
    [("/nonexistent/c++", "No such file"), ("c++ 'open", "quotation"), ("  ", "there is no C++")],
)
def test_a_cxx_that_cannot_be_run_is_told_too(sources, monkeypatch, compiler, problem):
    build, folder = sources
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert problem in build.compile_kernels()
    assert not list(folder.glob("*.so*"))


def test_kernels_without_jaxlib_are_not_compiled(sources, monkeypatch):
    build, _ = sources

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert build.compile_kernels() == "jaxlib, whose headers they need, is not installed"


@pytest.mark.parametrize("changed", ["attention.cc", "kernels.h", "build.py", "jaxlib"])
def test_kernels_of_other_sources_or_another_jaxlib_are_not_found(sources, monkeypatch, changed):
    _, folder = sources
    name_of = runpy.run_path(str(folder / "naming.py"))["library"]
    before = name_of().name
    assert before == library().name  # the sources are the same
    if changed == "jaxlib":
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
        name_of = runpy.run_path(str(folder / "naming.py"))["library"]
    else:
        with (folder / changed).open("a") as file:
            file.write("\n")
    assert name_of().name != before


@pytest.mark.slow
def test_the_sources_compile_without_warnings(sources):
    build, folder = sources
    build.COMMON += ["-Wall", "-Wextra", "-Wno-unused-function", "-Werror"]
    assert build.compile_kernels() is None
    (compiled,) = folder.glob("*.so")
    code = f"import ctypes; print(ctypes.CDLL({str(compiled)!r}).attention_forward)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ)
    assert done.returncode == 0


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
        return cpu_attention(q, k, v, None, 200, rounded=True)

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
            return cpu_attention(q, k, v, rounded=rounded)

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
    monkeypatch.setattr("rope_jax.model.platform.has_amx", lambda: has)
    monkeypatch.setattr("rope_jax.model.platform.load_kernels", lambda: "avx512")
    auto = ModelConfig(product_dtype="auto")
    assert model_for_platform(auto, "cpu").product_dtype == ("bfloat16" if has else None)
    assert model_for_platform(auto, "gpu").product_dtype is None
    assert model_for_platform(ModelConfig(), "cpu").product_dtype is None
    monkeypatch.setattr("rope_jax.model.platform.load_kernels", lambda: "avx512_bf16")
    assert model_for_platform(auto, "cpu").product_dtype == "bfloat16"


def test_a_compiler_without_bfloat16_makes_the_other_kernels(sources, monkeypatch):
    build, folder = sources
    monkeypatch.setattr(build, "_BFLOAT16", ("avx512_bf16", (["-mno-such-set"], 16, 8)))
    monkeypatch.setattr(build, "COMMON", ["-O0", *build.COMMON[1:]])
    assert build.compile_kernels() is None
    kernels = ctypes.CDLL(str(next(folder.glob("*.so"))))
    kernels.choose_instruction_set.restype = ctypes.c_bool
    assert kernels.choose_instruction_set(b"generic")
    assert not kernels.choose_instruction_set(b"avx512_bf16")
