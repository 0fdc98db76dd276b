"""FLOPs against the products in a model's program; memory against what XLA allocates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import language_model, resolve_model, resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.data.batches import Batch
from rope_jax.devices.window_memory import (
    LARGEST_OVERESTIMATE,
    parameter_count,
    step_bound,
    window_bytes,
)
from rope_jax.model.cost import flops_per_token
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.rope import Frequencies, Rotary
from rope_jax.training.optimizer import optimizer
from rope_jax.training.step import fresh_state, make_train_step
from tests.model.reference import FAMILIES

WIDE = {"hidden_size": 64, "intermediate_size": 512, "num_attention_heads": 2}
SHALLOW = {"num_hidden_layers": 2}
MANY = {"feed_forward": {"type": "experts", "num_experts_per_tok": 6, "moe_intermediate_size": 64}}
SCANNED = {"attention": "blockwise", "layers": "scanned"}


@pytest.mark.parametrize(
    ("attention", "fields", "vocabulary", "length"),
    [
        ("xla", SHALLOW, 257, 4096),
        ("blockwise", WIDE | {"gated_mlp": False, "qk_norm": "all_heads"}, 257, 16384),
        ("blockwise", SHALLOW | MANY, 257, 4096),
        ("blockwise", SHALLOW | {"norm_placement": "both", "attention_softcap": 30.0}, 5000, 4096),
    ],
)
def test_the_estimate_of_a_forward_pass_is_near_what_xla_allocates(
    attention, fields, vocabulary, length
):
    config = ModelConfig(attention=attention, **fields)
    model = LanguageModel(resolve_model(config).spec(), vocabulary)
    params = model.abstract_params()
    rotary = Rotary.shared(Frequencies.from_float64(np.ones(config.heads_width // 2)))
    tokens = jax.ShapeDtypeStruct((1, length), np.int32)

    def nll(params, tokens, rotary):
        return model.nll(
            params, DecoderInputs(tokens, tokens, jnp.arange(length)[None], None, rotary)
        )

    compiled = jax.jit(nll).lower(params, tokens, rotary).compile()
    allocated = compiled.memory_analysis().temp_size_in_bytes
    assert 0.6 < window_bytes(config.spec(), vocabulary, length) / allocated < LARGEST_OVERESTIMATE


# What `sum(p.numel() for p in model.parameters())` gives for these models on the Hub.
PUBLISHED = {
    "meta-llama/Meta-Llama-3-8B": (
        8_030_261_248,
        {"vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
         "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "tie_word_embeddings": False},
    ),
    "Qwen/Qwen2-0.5B": (
        494_032_768,
        {"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864,
         "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
         "qkv_bias": True},
    ),
    "google/gemma-2-2b": (
        2_614_341_888,
        {"vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216,
         "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 256} | FAMILIES["gemma2"][0],
    ),
    "Qwen/Qwen3-30B-A3B": (
        30_532_122_624,
        {"vocab_size": 151_936, "hidden_size": 2048, "num_hidden_layers": 48,
         "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "qk_norm": True,
         "tie_word_embeddings": False,
         "feed_forward": {"type": "experts", "num_experts": 128, "num_experts_per_tok": 8,
                          "moe_intermediate_size": 768}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fields", [{"per_layer_width": 16}, {"shared_kv_layers": 2}])
def test_flops_are_six_for_each_weight_of_a_matrix(fields):
    spec = ModelConfig(num_hidden_layers=4, tie_word_embeddings=False, **fields).spec()
    shapes = jax.tree_util.tree_leaves_with_path(LanguageModel(spec, 50).abstract_params())
    weights = sum(leaf.size for path, leaf in shapes if path[-1].key == "kernel")
    assert flops_per_token(spec, 50, 0) == 6 * weights


@pytest.mark.parametrize(("published", "fields"), PUBLISHED.values(), ids=PUBLISHED)
def test_the_parameter_count_is_that_of_published_models(published, fields):
    assert (
        parameter_count(
            LanguageModel(resolve_model(ModelConfig(**fields)).spec(), fields["vocab_size"])
        )
        == published
    )


@pytest.mark.parametrize(
    ("fields", "seq_len", "batch_size", "grad_accumulation"),
    [
        (SCANNED | {"remat": "attention"}, 2048, 2, 1),
        # parameters weigh more than what is kept for the backward pass
        ({"hidden_size": 512, "intermediate_size": 1408, "layers": "scanned"}, 16, 2, 1),
        pytest.param({}, 512, 16, 4, marks=pytest.mark.slow),
        pytest.param({**FAMILIES["gemma2"][0]}, 256, 8, 1, marks=pytest.mark.slow),
    ],
)
def test_a_training_step_never_takes_less_than_its_bound(
    fields, seq_len, batch_size, grad_accumulation
):
    stage = {"steps": 5, "seq_len": seq_len, "batch_size": batch_size}
    stage["grad_accumulation"] = grad_accumulation
    settings = {"name": "cost", "model": SHALLOW | fields, "stages": [stage]}
    config = TrainingConfig.model_validate(settings | {"optim": {"warmup_steps": 1}})
    model, adamw = language_model(resolve_run(config), 257), optimizer(config)
    integers = jax.ShapeDtypeStruct((batch_size, seq_len), np.int32)
    weights = jax.ShapeDtypeStruct((batch_size, seq_len), np.float32)
    batch = Batch(integers, integers, integers, integers, weights)
    rotary = Rotary.unscaled_queries(config.rotary_layers.frequencies(config.stage_scaling(0)))
    state = jax.eval_shape(lambda: fresh_state(model, adamw, 0))
    step = make_train_step(model, adamw, grad_accumulation)
    memory = step.lower(state, batch, rotary).compile().memory_analysis()
    # the new state is written in place of the old one
    assert memory.alias_size_in_bytes > 0.9 * memory.output_size_in_bytes
    allocated = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    params, whole = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        for tree in (state.params, state)
    )
    tokens = batch_size * seq_len
    bound = step_bound(config.model.spec(), params, whole, tokens, grad_accumulation)
    assert 0.04 < bound / allocated < 1


# FLOPs

NARROW = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "head_dim": 10,
          "num_key_value_heads": 2, "attention": "xla"}  # fmt: skip
ROTARY = Rotary.shared(Frequencies.from_float64(np.ones(5)))


def products(jaxpr):
    """Count the FLOPs of every matrix product in a program and in the programs inside it."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = math.prod(left[axis] for axis in contracted)
            total += 2 * inner * math.prod(equation.outvars[0].aval.shape)
        for inside in jaxprs_in_params(equation.params):
            total += products(inside)
    return total


def forward(seq_len, vocab_size=61, **fields):
    """Count the FLOPs of one token's forward pass."""
    model = LanguageModel(resolve_model(ModelConfig(**NARROW | fields)).spec(), vocab_size)
    text = np.zeros((1, seq_len), np.int32)
    shapes = model.abstract_params()
    program = jax.make_jaxpr(model.nll)(shapes, DecoderInputs(text, text, text, None, ROTARY))
    return products(program.jaxpr) / seq_len


def by_formula(seq_len, vocab_size=61, **fields):
    return flops_per_token(ModelConfig(**NARROW | fields).spec(), vocab_size, seq_len)


def test_flops_golden():
    # The demo: 4 layers of 128 × 4·128 + 3·128·352 weights, a head of 128 × 257, T 128.
    matrices = 4 * (65_536 + 135_168) + 32_896
    assert flops_per_token(ModelConfig().spec(), 257, 128) == 6 * (matrices + 4 * 128 * 128)


def test_flops_of_the_output_head_match_the_program():
    # Forward and backward are three products of the size of the forward one.
    settings = {"num_hidden_layers": 1}
    counted = forward(16, 161, **settings) - forward(16, 61, **settings)
    assert by_formula(16, 161, **settings) - by_formula(16, 61, **settings) == 3 * counted


LATENT = {"type": "latent", "q_lora_rank": 9, "qk_rope_head_dim": 10, "v_head_dim": 6}


@pytest.mark.parametrize(
    ("fields", "widths"),
    [
        ({"gated_mlp": True}, 10 + 10),
        ({"gated_mlp": False}, 10 + 10),
        (
            {"self_attention": LATENT, "head_dim": None, "num_key_value_heads": None},
            10 + 32 + 6,
        ),
    ],
)
def test_flops_of_one_layer_match_the_program(fields, widths):
    # Except for attention: for a short window the program computes both halves of the mask.
    one, two = ({"num_hidden_layers": n, **fields} for n in (1, 2))
    counted = forward(16, **two) - forward(16, **one)
    formula = by_formula(16, **two) - by_formula(16, **one)
    attention = 2 * 6 * widths * 16
    assert formula == 3 * (counted - attention / 2)


def test_recomputation_does_not_count_as_flops():
    assert by_formula(16, remat="layer") == by_formula(16)
