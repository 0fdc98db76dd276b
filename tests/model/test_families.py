"""Decoders of other families than Llama's, against float64; the pieces they are made of.

Shapes: B batch, T length.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rope_jax.attention import BACKENDS
from rope_jax.attention.blockwise import banded_blockwise
from rope_jax.config.model import ModelConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.model.decoder import LanguageModel, language_model
from rope_jax.model.norms import norm
from rope_jax.model.resolve import resolve_model, resolve_run
from rope_jax.rope import Frequencies, Rotary, RotaryGeometry, parse_scaling
from tests.model.reference import FAMILIES, SIZES, loud_params, reference_nll

pytestmark = pytest.mark.usefixtures("compiled_quickly")

V, B, T = 61, 2, 40
# Between them, these have every field.
VARIED = ("olmo2", "gemma2", "gpt_neox")


def family(name, **fields):
    own, windows = FAMILIES[name]
    return LanguageModel(
        resolve_model(ModelConfig(**SIZES | own | fields)), V, "half", windows
    ), windows


def rotary():
    """Different frequencies in every layer, and 8 of 12 dimensions turned."""
    layers = [
        parse_scaling({"type": "ntk", "factor": factor}).frequencies(RotaryGeometry(8, 1e4, 32))
        for factor in (1.0, 2.0, 8.0)
    ]
    leaves = (np.stack(leaf)[:, None] for leaf in zip(*layers, strict=True))
    return Rotary(Frequencies(*leaves), np.ones((1, 1, 1), np.float32))


def inputs():
    """Two rows of several documents, whose positions restart."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, V, (B, T + 1)).astype(np.int32)
    starts = rng.random((B, T)) < 0.06
    starts[:, 0] = True
    index = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    positions = index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    return tokens[:, :-1], tokens[:, 1:], positions, np.cumsum(starts, axis=1).astype(np.int32)


@functools.cache
def unrolled(name):
    """Return a family's NLL and its gradient, with whole score matrices."""
    model, _ = family(name)
    return nll_and_gradient(model)


def nll_and_gradient(model):
    def total(params):
        nll = model.nll(params, *map(jnp.asarray, inputs()), rotary())
        weights = np.linspace(-1, 2, T, dtype=np.float32)[None]
        return (nll * weights).sum(), nll

    (_, nll), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(loud_params(model))
    return nll, gradient


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_matches_the_reference(name):
    model, windows = family(name)
    params = loud_params(model)
    found, gradient = unrolled(name)
    wanted = reference_nll(model.config, "half", params, *inputs(), rotary(), windows)
    assert wanted.std() > 0.5  # far from a uniform guess, on which any two models agree
    np.testing.assert_allclose(found, wanted, atol=3e-5)
    for path, leaf in jax.tree.leaves_with_path(gradient):
        assert np.isfinite(leaf).all(), jax.tree_util.keystr(path)
        # keys may all move by the same vector: softmax does not see it
        if "k_proj']['bias" not in jax.tree_util.keystr(path):
            assert np.abs(leaf).max() > 1e-4, jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", VARIED)
def test_blocks_scanned_layers_and_remat_give_the_same(name, monkeypatch):
    monkeypatch.setattr(
        BACKENDS["blockwise"], "attend_bands", functools.partial(banded_blockwise, block=16)
    )
    model, _ = family(name, attention="blockwise", layers="scanned", remat="attention")
    found, wanted = nll_and_gradient(model), unrolled(name)
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
    for (path, one), other in zip(
        jax.tree.leaves_with_path(found[1]), jax.tree.leaves(wanted[1]), strict=True
    ):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=3e-4, err_msg=name)


@pytest.mark.parametrize("name", VARIED)
def test_the_last_targets_are_those_of_all(name):
    model, _ = family(name)
    found = jax.jit(functools.partial(model.nll, last=7))(loud_params(model), *inputs(), rotary())
    np.testing.assert_allclose(found, unrolled(name)[0][:, -7:], atol=5e-6)


def test_the_finite_difference_of_the_reference_is_the_gradient():
    # of one number in every kind of parameter, in a model with all the nonlinearities
    model, windows = family("gemma2")
    params = jax.tree.map(np.float64, loud_params(model))
    weights = np.linspace(-1, 2, T)[None]

    def total():
        nll = reference_nll(model.config, "half", params, *inputs(), rotary(), windows)
        return (nll * weights).sum()

    for path, gradient in jax.tree.leaves_with_path(unrolled("gemma2")[1]):
        leaf = functools.reduce(lambda tree, key: tree[key.key], path, params)
        place = np.unravel_index(np.argmax(np.abs(gradient)), gradient.shape)
        sums = []
        for step in (1e-5, -2e-5):
            leaf[place] += step
            sums.append(total())
        leaf[place] += 1e-5
        slope = (sums[0] - sums[1]) / 2e-5
        assert float(gradient[place]) == pytest.approx(slope, rel=1e-3), jax.tree_util.keystr(path)


def test_a_query_scalar_is_a_factor_of_the_queries():
    plain, _ = family("qwen2")
    scaled, _ = family("qwen2", query_pre_attn_scalar=48.0)
    params = loud_params(plain)
    louder = jax.tree.map(np.copy, params)
    for leaf in louder["layers"]["self_attn"]["q_proj"].values():
        leaf *= 2  # √(48/12)
    found = jax.jit(scaled.nll)(louder, *inputs(), rotary())
    np.testing.assert_allclose(found, unrolled("qwen2")[0], atol=2e-5)
    assert jax.tree.structure(params) == jax.tree.structure(louder)


# Types


def test_embeddings_are_scaled_by_the_rounded_root():
    config = ModelConfig(**SIZES | {"hidden_size": 48, "scale_embeddings": True})
    for dtype, root in (("float32", np.float32(48**0.5)), ("bfloat16", 6.9375)):
        model = LanguageModel(resolve_model(config.model_copy(update={"dtype": dtype})), V)
        params = loud_params(model)
        embedded = model._outer(params).embed(jnp.arange(5))
        assert embedded.dtype == dtype
        plain = jnp.asarray(params["embed_tokens"]["embedding"][:5], dtype)
        np.testing.assert_array_equal(embedded, plain * jnp.asarray(root, dtype))


def test_the_scale_of_gemmas_norm_is_not_rounded_with_its_one():
    config = ModelConfig(norm="rms_norm_plus_one", rms_norm_eps=1e-6, param_dtype="bfloat16")
    module = norm(config, 4, nnx.Rngs(0))
    assert module.scale[...].dtype == jnp.bfloat16
    np.testing.assert_array_equal(module.scale[...], 0)
    module.scale[...] = jnp.full(4, 2**-12, jnp.bfloat16)
    x = jnp.asarray([[3.0, -3.0, 3.0, 3.0]])
    np.testing.assert_allclose(np.abs(module(x)), 1 + 2**-12, rtol=3e-7)


@pytest.mark.parametrize("kind", ["rms_norm", "rms_norm_plus_one", "layer_norm"])
def test_norms_of_bfloat16_are_computed_in_float32(kind):
    module = norm(ModelConfig(norm=kind), 64, nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).normal(3.0, 1.0, (5, 64)), jnp.bfloat16)
    found = module(x)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, module(x.astype(jnp.float32)).astype(jnp.bfloat16))


def test_layer_norm_is_exact_where_the_mean_is_large():
    module = norm(ModelConfig(norm="layer_norm", rms_norm_eps=1e-9), 256, nnx.Rngs(0))
    x = (2000 + np.random.default_rng(0).standard_normal((3, 256))).astype(np.float32)
    exact = np.float64(x)
    wanted = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(module(jnp.asarray(x)), wanted, atol=2e-4)


@pytest.mark.parametrize("name", VARIED)
def test_bfloat16_weights_give_the_losses_of_their_rounded_values(name):
    model, _ = family(name, param_dtype="bfloat16")
    fresh = jax.eval_shape(lambda: model.init(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} == {jnp.dtype(jnp.bfloat16)}
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), loud_params(model))
    found = jax.jit(model.nll)(params, *inputs(), rotary())
    rounded = jax.tree.map(lambda x: x.astype(np.float32), params)
    wanted = jax.jit(family(name)[0].nll)(rounded, *inputs(), rotary())
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("name", VARIED)
def test_activations_in_bfloat16_are_close_to_float32(name):
    model, _ = family(name, dtype="bfloat16")
    found = jax.jit(model.nll)(loud_params(model), *inputs(), rotary())
    error = np.abs(found - unrolled(name)[0])
    assert 1e-4 < error.mean() < 0.05
    assert error.max() < 0.5


# The vocabulary


def run_config(**model):
    stages = [{"steps": 200, "seq_len": T, "batch_size": B}]
    return Config.model_validate({"name": "x", "model": SIZES | model, "stages": stages})


def test_a_models_own_vocabulary_may_be_larger_than_the_tokenizers():
    model = language_model(resolve_run(run_config(vocab_size=300)), 257)
    shapes = jax.eval_shape(lambda: model.init(0))
    assert shapes["embed_tokens"]["embedding"].shape == (300, 32)
    assert language_model(resolve_run(run_config()), 257).vocab_size == 257
    with pytest.raises(
        UserError, match=r"model\.vocab_size: 200 is smaller than the tokenizer's 257"
    ):
        language_model(resolve_run(run_config(vocab_size=200)), 257)
