"""Decoders of every family against a float64 reference in numpy, and against themselves.

Shapes: B batch, T length, L layers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.blockwise import Blockwise
from rope_jax.blocks.base import DecoderSpec
from rope_jax.blocks.norms import norm
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import language_model, resolve_model, resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.model.layers import multiplied
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import MAPS
from rope_jax.rope import Frequencies, Rotary, RotaryGeometry, RotaryLayers, parse_scaling
from tests.model.reference import FAMILIES, SIZES, kinds_of, loud_params, reference_nll

V, B, T, L = 61, 3, 50, 3  # L = B: code that confuses the two axes must not pass
WEIGHTS = np.linspace(-1, 2, T, dtype=np.float32)[None]
# The largest difference over 40 texts is 2.8e-5 (groups of experts, AVX2): losses of up to 12 nats
# are rounded to 1e-6, and three layers of products multiply that.
FAR_FROM_FLOAT64 = 1e-4


def text(seed=0):
    tokens = np.random.default_rng(seed).integers(0, V, (B, T + 1)).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


SEGMENTS = np.cumsum(np.random.default_rng(1).random((B, T)) < 0.06, axis=1).astype(np.int32)
POSITIONS = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
# Jumps forward, as when training on skipped positions, and back. Neither changes what is visible.
JUMPS = np.stack(
    [
        np.where(np.arange(T) < 31, np.arange(T), np.arange(T) + 100_000),
        np.concatenate([np.arange(T // 2), np.arange(T // 2)]),
        np.arange(T)[::-1],
    ]
).astype(np.int32)


def frequencies(**settings):
    return parse_scaling({"type": "none"} | settings).frequencies(RotaryGeometry(8, 1e4, 32))


def by_layer():
    """Different frequencies and m in every layer; no rotation (NoPE) in the second."""
    layers = [
        frequencies(type="yarn", factor=4.0),
        Frequencies.from_float64(np.zeros(4)),
        frequencies(type="pi", factor=2.0),
    ]
    leaves = (np.stack(leaf)[:, None] for leaf in zip(*layers, strict=True))
    return Rotary(Frequencies(*leaves), np.ones((1, 1, 1), np.float32))


def by_row():
    """Different frequencies in every row, and queries scaled by layer, row and token."""
    rows = [frequencies(type="ntk", factor=float(s)) for s in (1, 2, 8)]
    leaves = (np.stack(leaf)[None] for leaf in zip(*rows, strict=True))
    scale = np.random.default_rng(2).uniform(0.5, 2, (L, B, T)).astype(np.float32)
    return Rotary(Frequencies(*leaves), scale)


PACKED = POSITIONS, SEGMENTS, by_layer()
# Grouped queries, heads of which 8 of 12 dimensions are rotated, QK-norm, a separate output matrix
# with a bias. No limits of queries: their derivative jumps, so rounding would matter.
FULL = {"num_attention_heads": 6, "qk_norm": "by_head"}
FULL |= {"tie_word_embeddings": False, "head_bias": True}
PLAIN = {"head_dim": 8, "num_key_value_heads": 4}
# By name: the model's fields, its sliding windows, layout, and (positions, segments, rotary).
MODELS = {name: (*family, "half", PACKED) for name, family in FAMILIES.items()} | {
    "plain": (PLAIN, (None,), "half", (POSITIONS, None, Rotary.shared(frequencies()))),
    "full": (FULL, (5, None, 20), "half", PACKED),
    # positions jump both ways; the mask goes by index in the window
    "jumps": (
        PLAIN | {"num_key_value_heads": 1},
        (None,),
        "interleaved",
        (JUMPS, None, by_row()),
    ),
}


def made(name, **fields):
    own, windows, layout, _ = MODELS[name]
    config = resolve_model(ModelConfig(**SIZES | {"layers": "scanned"} | own | fields))
    return LanguageModel(config.spec(layout=layout, pattern=kinds_of(windows)), V)


def windows_of(name):
    return DecoderInputs(*text(), *MODELS[name][3])


@functools.cache
def nll_and_gradient(name, **fields):
    """Return the NLL of the targets, and the gradient of its weighted sum."""
    model = made(name, **fields)

    def total(params, windows):
        nll = model.nll(params, windows)
        return (nll * WEIGHTS).sum(), nll

    derived = jax.jit(jax.value_and_grad(total, has_aux=True))
    (_, nll), gradient = derived(loud_params(model), windows_of(name))
    return np.asarray(nll), gradient


# of the others, only losses are compared
GRADED = ("gemma2", "full", "deepseek", "gpt_oss", "groups of experts")


@functools.cache
def nll_of(name):
    if name in GRADED:
        return nll_and_gradient(name)[0]
    return jax.jit(made(name).nll)(loud_params(made(name)), windows_of(name))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_matches_the_reference(name):
    _, windows, layout, inputs = MODELS[name]
    model = made(name)
    found, params = nll_of(name), loud_params(model)
    wanted = reference_nll(model.spec, layout, params, *text(), *inputs, windows)
    assert wanted.std() > 0.5  # far from a uniform guess, on which any two models agree
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=FAR_FROM_FLOAT64)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        # scanned, it is a repeat of two layers, and one layer more
        ("gemma2", {"layers": "unrolled", "remat": "products"}),
        ("full", {"layers": "unrolled", "remat": "attention", "attention": "blockwise"}),
        ("full", {"remat": "layer"}),
        ("deepseek", {"layers": "unrolled", "remat": "products", "attention": "blockwise"}),
        ("gpt_oss", {"attention": "blockwise"}),
        ("groups of experts", {"layers": "unrolled", "remat": "layer"}),
    ],
)
def test_losses_and_gradients_do_not_depend_on_how_layers_run(name, fields, monkeypatch):
    monkeypatch.setitem(BACKENDS, "blockwise", Blockwise(block=16))
    found, wanted = nll_and_gradient(name, **fields), nll_and_gradient(name)
    np.testing.assert_allclose(found[0], wanted[0], atol=5e-5)  # 1.4e-5 over 40 texts
    for (path, one), other in zip(
        jax.tree.leaves_with_path(found[1]), jax.tree.leaves(wanted[1]), strict=True
    ):
        leaf = jax.tree_util.keystr(path)
        # keys may all move by the same vector: softmax does not see it
        has_none = "k_proj']['bias" in leaf or "choice_bias" in leaf
        assert has_none or np.abs(other).max() > 1e-4, leaf
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=3e-4, err_msg=leaf)


@pytest.mark.parametrize("name", ["gemma2", "deepseek", "gpt_oss", "groups of experts"])
def test_the_finite_difference_of_the_reference_is_the_gradient(name):
    # of one number in every kind of parameter, in models with all the nonlinearities
    model, (_, windows, layout, inputs) = made(name), MODELS[name]
    params = jax.tree.map(np.float64, loud_params(model))

    def total():
        nll = reference_nll(model.spec, layout, params, *text(), *inputs, windows)
        return (nll * WEIGHTS).sum()

    for path, gradient in jax.tree.leaves_with_path(nll_and_gradient(name)[1]):
        leaf = functools.reduce(lambda tree, key: tree[key.key], path, params)
        place = np.unravel_index(np.argmax(np.abs(gradient)), gradient.shape)
        sums = []
        for step in (1e-5, -2e-5):
            leaf[place] += step
            sums.append(total())
        leaf[place] += 1e-5
        slope = (sums[0] - sums[1]) / 2e-5
        assert float(gradient[place]) == pytest.approx(slope, rel=1e-3), jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    ("name", "fields", "last"),
    [
        ("full", {"layers": "unrolled"}, 7),
        ("gemma2", {}, 1),
        ("full", {"norm": "layer_norm", "parallel_residual": True}, T),
        ("deepseek", {"attention_sinks": True}, 7),
        ("groups of experts", {}, 5),
    ],
)
def test_nll_of_the_last_targets_equals_that_of_all(name, fields, last):
    model = made(name, **fields)
    inputs, run = windows_of(name), functools.partial(model.nll, last=last)
    found = jax.jit(run)(loud_params(model), inputs)
    wanted = jax.jit(model.nll)(loud_params(model), inputs)[:, -last:]
    np.testing.assert_allclose(found, wanted, atol=5e-6)
    # The feed-forward of the last layer computes only those rows.
    program = str(jax.make_jaxpr(run)(loud_params(model), inputs))
    assert f"f32[{B * last},48]" in program


@pytest.fixture(scope="module")
def plain():
    """Return nll(tokens, targets, positions, segment_ids) of the plain model, jitted."""
    model = made("plain")
    params, jitted = loud_params(model), jax.jit(model.nll)
    rotary, one = Rotary.shared(frequencies()), np.zeros((B, T), np.int32)

    def nll(tokens, targets, positions, segment_ids=one):
        positions = np.broadcast_to(positions, (B, T)).astype(np.int32)
        return np.asarray(
            jitted(params, DecoderInputs(tokens, targets, positions, segment_ids, rotary))
        )

    return nll


def test_only_differences_of_positions_matter(plain):
    # With positions in bfloat16, or angles in float32, an offset of 1,000,000 would change the NLL.
    here = plain(*text(), POSITIONS)
    np.testing.assert_allclose(plain(*text(), POSITIONS + 1_000_000), here, atol=2e-5)
    assert np.max(np.abs(plain(*text(), 2 * POSITIONS) - here)) > 0.1


# Types


@pytest.mark.parametrize("fast", [False, True])  # where factors are float32, and bfloat16
@pytest.mark.parametrize("name", ["deepseek", "gpt_oss"])
def test_bfloat16_models_are_close_to_float32_on_any_cpu(monkeypatch, name, fast):
    monkeypatch.setattr("rope_jax.config.resolve._multiplies_bfloat16", lambda: fast)
    model = made(name, dtype="bfloat16")
    found = jax.jit(model.nll)(loud_params(model), windows_of(name))
    error = np.abs(found - nll_of(name))
    assert 1e-4 < error.mean() < 0.06


@pytest.mark.parametrize("fast", [False, True])
def test_bfloat16_is_close_to_float32(monkeypatch, plain, fast):
    # At far positions, where angles computed in bfloat16 would be entirely wrong.
    monkeypatch.setattr("rope_jax.config.resolve._multiplies_bfloat16", lambda: fast)
    model, positions = made("plain", dtype="bfloat16"), POSITIONS + 100_000
    params, nll, rotary = loud_params(model), jax.jit(model.nll), Rotary.shared(frequencies())
    errors = [
        np.abs(
            nll(params, DecoderInputs(*inputs, positions, None, rotary)) - plain(*inputs, positions)
        )
        for inputs in map(text, range(5))
    ]
    # few tokens are ill-conditioned, and off by several times as much
    assert np.quantile(errors, 0.5) > 1e-3
    assert np.quantile(errors, 0.9) < 0.1


@pytest.mark.parametrize("name", ["deepseek", "gpt_oss"])
def test_far_keys_at_the_same_distances_change_nothing(name):
    model, layers = made(name), RotaryLayers(RotaryGeometry(8, 1e4, 32), L)
    one = layers.rotary(parse_scaling("none"), POSITIONS[:1])
    same = MAPS["self_extend"](window=8, group=1)
    two = with_map(one, same, layers, POSITIONS[:1], window=32, seq_len=T)
    assert len(two.bands) == 2
    nll = jax.jit(model.nll)
    found, wanted = (
        nll(loud_params(model), DecoderInputs(*text(), POSITIONS, None, rotary))
        for rotary in (two, one)
    )
    np.testing.assert_allclose(found, wanted, atol=5e-5)


def test_bfloat16_weights_give_the_losses_of_their_rounded_values():
    model = made("full", param_dtype="bfloat16")
    fresh = model.abstract_params()
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} == {jnp.dtype(jnp.bfloat16)}
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), loud_params(model))
    rounded = jax.tree.map(lambda x: x.astype(np.float32), params)
    _, windows, layout, inputs = MODELS["full"]
    found = jax.jit(model.nll)(params, windows_of("full"))
    wanted = reference_nll(model.spec, layout, rounded, *text(), *inputs, windows)
    np.testing.assert_allclose(found, wanted, atol=FAR_FROM_FLOAT64)


def test_embeddings_are_scaled_by_the_rounded_root():
    config = ModelConfig(**SIZES | {"hidden_size": 48, "scale_embeddings": "sqrt_hidden_size"})
    for dtype, root in (("float32", np.float32(48**0.5)), ("bfloat16", 6.9375)):
        model = LanguageModel(resolve_model(config.model_copy(update={"dtype": dtype})).spec(), V)
        params = loud_params(model)
        embedded = jax.jit(lambda p, model=model: model._outer(p).embed(jnp.arange(5)))(params)
        assert embedded.dtype == dtype
        embeddings = params["embed_tokens"]["embedding"][:5].astype(jnp.dtype(dtype))
        np.testing.assert_array_equal(embedded, embeddings * jnp.dtype(dtype).type(root))


def test_a_multiplier_is_not_rounded_to_bfloat16():
    x = jnp.asarray([3.0, 5.0, 7.0], jnp.bfloat16)
    np.testing.assert_array_equal(multiplied(x, 1 / 6), (np.float32([3, 5, 7]) / 6).astype(x.dtype))
    assert np.any(multiplied(x, 1 / 6) != x * (1 / 6))


@pytest.mark.parametrize("heads", [None, 5])
@pytest.mark.parametrize("kind", ["rms_norm", "rms_norm_plus_one", "layer_norm"])
def test_norms_of_bfloat16_are_computed_in_float32(kind, heads):
    module = norm(DecoderSpec(norm=kind), 64, nnx.Rngs(0), heads=heads)
    x = np.random.default_rng(0).normal(3.0, 1.0, (5, 64)).astype(jnp.bfloat16)
    found = module(jnp.asarray(x))
    wanted = module(jnp.asarray(x.astype(np.float32)))
    np.testing.assert_array_equal(found, np.asarray(wanted).astype(jnp.bfloat16))


def test_the_scale_of_gemmas_norm_is_not_rounded_with_its_one():
    config = ModelConfig(norm="rms_norm_plus_one", rms_norm_eps=1e-6, param_dtype="bfloat16")
    module = norm(config.spec(), 4, nnx.Rngs(0))
    assert module.scale[...].dtype == jnp.bfloat16
    np.testing.assert_array_equal(module.scale[...], 0)
    module.scale[...] = jnp.full(4, 2**-12, jnp.bfloat16)
    np.testing.assert_allclose(
        np.abs(module(jnp.asarray([[3.0, -3.0, 3.0, 3.0]]))), 1 + 2**-12, rtol=3e-7
    )


def test_layer_norm_is_exact_where_the_mean_is_large():
    module = norm(DecoderSpec(norm="layer_norm", rms_norm_eps=1e-9), 256, nnx.Rngs(0))
    x = (2000 + np.random.default_rng(0).standard_normal((3, 256))).astype(np.float32)
    exact = np.float64(x)
    wanted = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    # 2,000 is rounded to 1e-4, a mean of squares would be to 0.2
    np.testing.assert_allclose(module(jnp.asarray(x)), wanted, atol=1e-3)


def test_a_models_own_vocabulary_may_be_larger_than_the_tokenizers():
    def model(**fields):
        stages = [{"steps": 200, "seq_len": T, "batch_size": B}]
        settings = {"name": "x", "model": SIZES | fields, "stages": stages}
        return language_model(resolve_run(TrainingConfig.model_validate(settings)), 257)

    shapes = model(vocab_size=300).abstract_params()
    assert shapes["embed_tokens"]["embedding"].shape == (300, 32)
    assert model().vocab_size == 257
    with pytest.raises(UserError, match=r"^model\.vocab_size: 200 is smaller than the tokenizer's"):
        model(vocab_size=200)
