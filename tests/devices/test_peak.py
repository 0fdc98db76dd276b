"""FLOPs by formula against the matrix products that a model's program holds."""

import functools
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from rope_jax.config.model import ModelConfig
from rope_jax.devices.peak import peak_flops
from rope_jax.model.cost import flops_per_token
from rope_jax.model.decoder import LanguageModel
from rope_jax.rope import Rotary, RotaryGeometry, parse_scaling

CONFIG = ModelConfig(
    hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, head_dim=10
)
ROTARY = Rotary.shared(
    parse_scaling({"type": "none"}).frequencies(RotaryGeometry(CONFIG.heads_width))
)


def products(jaxpr):
    """FLOPs of every matrix product in a program, and of the programs inside it."""
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


@functools.cache
def forward(seq_len, vocab_size=61, **fields):
    """FLOPs of one token's forward pass, counted."""
    model = LanguageModel(ModelConfig(**CONFIG.model_dump() | fields), vocab_size)
    text = np.zeros((1, seq_len), np.int32)
    program = jax.make_jaxpr(model.nll)(
        jax.eval_shape(lambda: model.init(0)), text, text, text, None, ROTARY
    )
    return products(program.jaxpr) / seq_len


def by_formula(seq_len, vocab_size=61, **fields):
    return flops_per_token(ModelConfig(**CONFIG.model_dump() | fields), vocab_size, seq_len)


def test_flops_golden():
    # The demo: 4 layers of 128 × 4·128 + 3·128·352 weights, a head of 128 × 257, T 128.
    matrices = 4 * (65_536 + 135_168) + 32_896
    assert flops_per_token(ModelConfig(), 257, 128) == 6 * (matrices + 4 * 128 * 128)


@pytest.mark.parametrize("tied", [True, False])
def test_output_head(tied):
    # Forward and backward are three products of the forward's size.
    settings = {"tie_word_embeddings": tied, "num_hidden_layers": 1}
    counted = forward(16, 161, **settings) - forward(16, 61, **settings)
    assert by_formula(16, 161, **settings) - by_formula(16, 61, **settings) == 3 * counted


def test_one_layer():
    # Apart from attention, where the program of a short window does both halves of the mask.
    counted = forward(16, num_hidden_layers=2) - forward(16, num_hidden_layers=1)
    formula = by_formula(16, num_hidden_layers=2) - by_formula(16, num_hidden_layers=1)
    attention = 2 * 2 * 6 * 10 * 16
    assert formula == 3 * (counted - attention / 2)


def test_remat_does_not_count():
    assert by_formula(16, remat=True) == by_formula(16)


@pytest.mark.parametrize(
    ("kind", "flops"),
    [("NVIDIA H100 80GB HBM3", 989e12), ("TPU v5 lite", 197e12), ("TPU v5p", 459e12)],
)
def test_peak_by_data_sheet(kind, flops, monkeypatch):
    devices = [SimpleNamespace(device_kind=kind)] * 4
    monkeypatch.setattr("jax.devices", lambda: devices)
    assert peak_flops() == (4 * flops, "data sheet, bfloat16")


def test_peak_of_another_device_is_measured():
    flops, source = peak_flops()
    assert source == "measured, 1024³ float32 matmul"
    assert 1e9 < flops < 1e14
