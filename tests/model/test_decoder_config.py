"""Every field of a model's config changes something; fresh parameters; the choice of a backend."""

import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.attention.backends import BACKENDS
from rope_jax.blocks import GroupedQueryAttention, LatentAttention
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import resolve_model
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.rope import Frequencies, Rotary

V, B, T, L = 61, 3, 70, 3
PLAIN = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": L, "attention": "xla"}
TOKENS = jax.ShapeDtypeStruct((B, T), np.int32)


def shapes_of(model):
    return model.abstract_params()


def rotary(width):
    return Rotary.shared(Frequencies.from_float64(1e4 ** (-2 * np.arange(width // 2) / width)))


def test_fresh_parameters_have_the_configured_spread():
    fields = PLAIN | {"qk_norm": True, "tie_word_embeddings": False, "initializer_range": 0.05}
    params = LanguageModel(resolve_model(ModelConfig(**fields)).spec(), V).init(3)
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


@functools.cache
def program(**fields):
    """Return the parameters' shapes and the program of the loss, as text."""
    config = ModelConfig(**PLAIN | {"num_hidden_layers": 1} | fields)
    model = LanguageModel(resolve_model(config).spec(), V)
    shapes = shapes_of(model)

    def nll(params, tokens, positions):
        return model.nll(
            params, DecoderInputs(tokens, tokens, positions, None, rotary(config.heads_width))
        )

    return str(shapes), str(jax.make_jaxpr(nll)(shapes, TOKENS, TOKENS))


# What each does is tested against the reference. By field: another value, and whether it changes
# the parameters' shapes; all change the program.
OTHERS = {
    "hidden_size": (64, True),
    "intermediate_size": (40, True),
    "num_hidden_layers": (2, True),
    "num_attention_heads": (8, False),  # narrower heads: the same shapes, a different program
    "num_key_value_heads": (2, True),
    "head_dim": (10, True),
    "self_attention": (LatentAttention.Config(), True),
    "attention_sinks": (True, True),
    "per_layer_width": (6, True),
    "layer_scale": (True, True),
    "alternate_mixer": (GroupedQueryAttention.Config(output_gate=True), True),
    "tie_word_embeddings": (False, True),
    "norm": ("layer_norm", True),
    "norm_placement": ("both", True),
    "qk_norm": (True, True),
    "clip_qkv": (2.0, False),
    "qkv_bias": (True, True),
    "o_bias": (True, True),
    "mlp_bias": (True, True),
    "head_bias": (True, True),
    "gated_mlp": (False, True),
    "parallel_residual": (True, False),
    "rms_norm_eps": (0.125, False),
    "dtype": ("bfloat16", False),
    "param_dtype": ("bfloat16", True),
    "product_dtype": ("bfloat16", False),
    "layers": ("scanned", False),
    "remat": ("attention", False),
    "activation": ("gelu", False),
    "scale_embeddings": ("sqrt_hidden_size", False),
    "residual_multiplier": (0.5, False),
    "logit_multiplier": (0.5, False),
    "query_pre_attn_scalar": (24.0, False),
    "attention_softcap": (7.0, False),
    "logit_softcap": (9.0, False),
}


@pytest.mark.parametrize("field", OTHERS)
def test_each_field_changes_the_program(field):
    value, changes_shapes = OTHERS[field]
    before, after = program(), program(**{field: value})
    assert before[1] != after[1]
    assert (before[0] != after[0]) == changes_shapes


def test_every_model_field_has_a_case():
    tested_alone = {"initializer_range", "attention", "position", "vocab_size"}
    tested_alone |= {"feed_forward", "dense_layers"}  # in test_experts.py
    # by the reference in test_decoder.py, and Gemma 4's golden models
    tested_alone |= {"alternate_layers", "shared_kv_layers", "shared_kv_wide_mlp"}
    assert set(OTHERS) | tested_alone == set(ModelConfig.model_fields)


def test_the_attention_backend_is_chosen_by_name(monkeypatch):
    choices = typing.get_args(ModelConfig.model_fields["attention"].annotation)
    assert set(choices) == {*BACKENDS, "auto"}  # auto chooses one of them
    called = []

    def recorded(inputs, sliding_window):
        (q,), (k,), v, segment_ids, *_ = inputs
        called.append((q.shape, k.shape, v.shape, segment_ids.shape))
        return q

    monkeypatch.setattr(BACKENDS["cudnn"], "attend_plain", recorded)
    config = ModelConfig(**PLAIN | {"attention": "cudnn", "num_key_value_heads": 2})
    model = LanguageModel(resolve_model(config).spec(), V)
    windows = DecoderInputs(TOKENS, TOKENS, TOKENS, TOKENS, rotary(8))
    jax.eval_shape(model.nll, shapes_of(model), windows)
    # layers of one kind are traced once
    assert called == [((B, T, 4, 8), (B, T, 2, 8), (B, T, 2, 8), (B, T))]


def test_frequencies_for_a_different_number_of_layers_are_rejected():
    model = LanguageModel(resolve_model(ModelConfig(**PLAIN)).spec(), V)
    two = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), rotary(8))
    with pytest.raises(ValueError, match="first axis must be 1 or the 3 layers"):
        jax.eval_shape(
            model.nll, shapes_of(model), DecoderInputs(TOKENS, TOKENS, TOKENS, None, two)
        )
