"""A model's config fields, fresh parameters, attention backend and Rotary for its layers."""

import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax import attention
from rope_jax.config.model import ModelConfig
from rope_jax.config.training import Config
from rope_jax.model.decoder import LanguageModel, language_model
from rope_jax.model.resolve import resolve_model, resolve_run
from rope_jax.rope import Frequencies, Rotary, RotaryGeometry, parse_scaling

V, B, T, L = 61, 3, 70, 3

PLAIN = ModelConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=L, num_attention_heads=4
)
TOKENS = jax.ShapeDtypeStruct((B, T), np.int32)


def with_fields(config, **fields):
    return ModelConfig(**config.model_dump() | fields)


# Grouped queries, heads wider than D/N, QK-norm and a separate output matrix.
FULL = with_fields(
    PLAIN,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=12,
    qk_norm=True,
    tie_word_embeddings=False,
)


def rotary(width):
    scaling = parse_scaling({"type": "none"})
    return Rotary.shared(scaling.frequencies(RotaryGeometry(width, 1e4, 32)))


def test_fresh_parameters_have_the_configured_spread():
    params = LanguageModel(resolve_model(with_fields(FULL, initializer_range=0.05)), V).init(3)
    params = jax.device_get(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        assert leaf.dtype == jnp.float32, name
        if path[-1].key == "scale":
            assert np.all(leaf == 1), name
        else:
            assert np.std(leaf) == pytest.approx(0.05, rel=0.06), name
            assert abs(np.mean(leaf)) < 0.005, name
    # Every layer is drawn independently.
    kernels = params["layers"]["mlp"]["up_proj"]["kernel"]
    assert np.max(np.abs(np.corrcoef(kernels.reshape(L, -1)) - np.eye(L))) < 0.1


# Every field changes either the parameters' shapes or the program.


def shapes(config):
    leaves = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(lambda: LanguageModel(resolve_model(config), V).init(0))
    )
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


@functools.cache
def gradient_program(config):
    """Return the jaxpr of the gradient of a one-layer model's loss."""
    model = LanguageModel(resolve_model(with_fields(config, num_hidden_layers=1)), V)
    width = config.heads_width

    def loss(params, tokens, positions):
        return model.nll(params, tokens, tokens, positions, None, rotary(width)).sum()

    params = jax.eval_shape(lambda: model.init(0))
    return str(jax.make_jaxpr(jax.grad(loss))(params, TOKENS, TOKENS))


KERNEL = "['layers']['{}']['{}']['kernel']"
BIAS = "['layers']['{}']['{}']['bias']"
# By field: another value, and the parameter shapes that it changes.
SHAPE_CASES = {
    "hidden_size": (64, {"['norm']['scale']": (64,)}),
    "intermediate_size": (40, {KERNEL.format("mlp", "gate_proj"): (L, 32, 40)}),
    "num_hidden_layers": (5, {KERNEL.format("mlp", "gate_proj"): (5, 32, 48)}),
    "num_attention_heads": (8, {}),  # narrower heads: the same shapes, a different program
    "num_key_value_heads": (2, {KERNEL.format("self_attn", "k_proj"): (L, 32, 16)}),
    "head_dim": (10, {KERNEL.format("self_attn", "q_proj"): (L, 32, 40)}),
    "tie_word_embeddings": (False, {"['lm_head']['kernel']": (32, V)}),
    "norm": (
        "layer_norm",
        {
            "['norm']['bias']": (32,),
            "['layers']['input_layernorm']['bias']": (L, 32),
            "['layers']['post_attention_layernorm']['bias']": (L, 32),
        },
    ),
    "norm_placement": (
        "both",
        {
            "['layers']['pre_feedforward_layernorm']['scale']": (L, 32),
            "['layers']['post_feedforward_layernorm']['scale']": (L, 32),
        },
    ),
    "qk_norm": (True, {"['layers']['self_attn']['q_norm']['scale']": (L, 8)}),
    "qkv_bias": (
        True,
        {BIAS.format("self_attn", name): (L, 32) for name in ("q_proj", "k_proj", "v_proj")},
    ),
    "o_bias": (True, {BIAS.format("self_attn", "o_proj"): (L, 32)}),
    "mlp_bias": (
        True,
        {
            BIAS.format("mlp", "gate_proj"): (L, 48),
            BIAS.format("mlp", "up_proj"): (L, 48),
            BIAS.format("mlp", "down_proj"): (L, 32),
        },
    ),
    "gated_mlp": (False, {KERNEL.format("mlp", "gate_proj"): None}),
}
# By field: another value, and text that only the program with it contains.
PROGRAM_CASES = {
    "num_attention_heads": (8, f"f32[{B},{T},8,4]"),
    "rms_norm_eps": (0.125, "0.125:f32"),
    "dtype": ("bfloat16", "bf16["),
    "product_dtype": ("bfloat16", ":bf16["),
    "layers": ("scanned", "scan["),
    "remat": ("attention", "policy=<function keep_attended"),
    "norm": ("rms_norm_plus_one", "= add 1.0:f32[] "),
    "activation": ("gelu", "] = erf"),
    "scale_embeddings": (True, " 5.656854"),
    "query_pre_attn_scalar": (24.0, " 0.57735"),
    "attention_softcap": (7.0, " 7.0:f32[]"),
    "logit_softcap": (9.0, " 9.0:f32[]"),
    "param_dtype": ("bfloat16", ":bf16["),
}


def test_every_model_field_has_a_case():
    tested_alone = {"initializer_range", "attention", "position", "vocab_size", "parallel_residual"}
    tested_alone |= {"feed_forward"}  # by the recipe for one, in test_add_a_backend_or_block.py
    assert set(SHAPE_CASES) | set(PROGRAM_CASES) | tested_alone == set(ModelConfig.model_fields)


@pytest.mark.parametrize("field", SHAPE_CASES)
def test_each_field_changes_the_parameters(field):
    value, changed = SHAPE_CASES[field]
    before, after = shapes(PLAIN), shapes(with_fields(PLAIN, **{field: value}))
    for name, shape in changed.items():
        assert before.get(name) != shape
        assert after.get(name) == shape


def test_qk_norm_of_all_heads_has_a_scale_for_every_dimension():
    found = shapes(with_fields(FULL, qk_norm="all_heads"))
    assert found["['layers']['self_attn']['q_norm']['scale']"] == (L, 6 * 12)
    assert found["['layers']['self_attn']['k_norm']['scale']"] == (L, 2 * 12)


def test_norms_after_attention_and_feed_forward_have_none_before_them():
    layer = {name for name in shapes(with_fields(PLAIN, norm_placement="after")) if "norm" in name}
    assert layer == {
        "['norm']['scale']",
        "['layers']['post_attention_layernorm']['scale']",
        "['layers']['post_feedforward_layernorm']['scale']",
    }


@pytest.mark.parametrize("field", PROGRAM_CASES)
def test_each_field_changes_the_program(field):
    value, text = PROGRAM_CASES[field]
    assert text not in gradient_program(PLAIN)
    assert text in gradient_program(with_fields(PLAIN, **{field: value}))


def test_the_attention_backend_is_chosen_by_name(monkeypatch):
    choices = typing.get_args(ModelConfig.model_fields["attention"].annotation)
    assert set(choices) == {*attention.BACKENDS, "auto"}  # auto chooses one of them
    called = []

    def recorded(q, k, v, segment_ids, sliding_window, part):
        called.append((q.shape, k.shape, v.shape, segment_ids.shape))
        return q

    monkeypatch.setattr(attention.BACKENDS["cudnn"], "attend", recorded)
    model = LanguageModel(resolve_model(with_fields(FULL, attention="cudnn")), V)
    params = jax.eval_shape(lambda: model.init(0))
    jax.eval_shape(model.nll, params, TOKENS, TOKENS, TOKENS, TOKENS, rotary(12))
    # layers of one kind are traced once
    assert called == [((B, T, 6, 12), (B, T, 2, 12), (B, T, 2, 12), (B, T))]


@pytest.mark.parametrize(
    ("settings", "rotates", "has_softmax"),
    [({}, True, True), ({"position": {"type": "none"}}, False, True),
     ({"attention": "linear"}, True, False)],
)  # fmt: skip
def test_a_runs_model_has_the_configured_positions_and_attention(settings, rotates, has_softmax):
    stages = [{"steps": 200, "seq_len": T, "batch_size": B}]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes["attention"] = "xla"  # whose softmax is part of the program
    config = Config.model_validate({"name": "x", "model": sizes | settings, "stages": stages})
    model = language_model(resolve_run(config), V)
    params = jax.eval_shape(lambda: model.init(0))

    def hidden_states(params, tokens):
        return model.hidden_states(params, tokens, tokens, None, rotary(8))[0]

    program = str(jax.make_jaxpr(hidden_states)(params, TOKENS))
    assert model.encoding.type == settings.get("position", {"type": "rope"})["type"]
    # the angles are computed in every model, but only some turn queries, [B, T, 4 heads, 8/2]
    assert (f"f32[{B},{T},4,4] = mul" in program) == rotates
    assert ("reduce_max" in program) == has_softmax


def test_frequencies_for_a_different_number_of_layers_are_rejected():
    model = LanguageModel(
        resolve_model(ModelConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=3)),
        5,
    )
    shared = Rotary.shared(Frequencies.from_float64(np.ones(1)))
    two = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), shared)
    params = jax.eval_shape(lambda: model.init(0))
    with pytest.raises(ValueError, match="its first axis must be 1 or the 3 layers"):
        jax.eval_shape(model.nll, params, TOKENS, TOKENS, TOKENS, None, two)
