"""Attention has rounded factors where the model's other products do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.model import ModelConfig
from rope_jax.kernels import loading
from rope_jax.model.decoder import LanguageModel
from rope_jax.model.resolve import resolve_model
from rope_jax.rope import Frequencies, Rotary
from tests.programs import equations

V, T = 61, 130


def program(backend, product_dtype, derived):
    """Return the equations of a one-layer model's loss, or with `derived` of its gradient."""
    model = LanguageModel(
        resolve_model(
            ModelConfig(
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=1,
                num_attention_heads=4,
                attention=backend,
                product_dtype=product_dtype,
            )
        ),
        V,
    )
    rotary = Rotary.shared(Frequencies.from_float64(10.0 ** -np.arange(4)))
    tokens = jax.ShapeDtypeStruct((2, T), np.int32)

    def loss(params, tokens):
        positions = jnp.arange(T)[None]
        return model.nll(params, tokens, tokens, positions, None, rotary).sum()

    params = jax.eval_shape(lambda: model.init(0))
    return list(equations(jax.make_jaxpr(derived(loss))(params, tokens).jaxpr))


@pytest.mark.parametrize("backend", ["xla", "blockwise"])
def test_products_of_attention_have_factors_of_bfloat16(backend):
    def is_attention(equation):
        return equation.invars[0].aval.shape[:2] == (2, 4)  # windows and heads

    def factors(product_dtype):
        found = program(backend, product_dtype, lambda loss: loss)
        products = [e for e in found if e.primitive.name == "dot_general" and is_attention(e)]
        return [x.aval.dtype for e in products for x in e.invars]

    assert set(factors(None)) == {jnp.dtype(jnp.float32)}
    assert set(factors("bfloat16")) == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.skipif(loading.load_kernels() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(("product_dtype", "rounded"), [(None, False), ("bfloat16", True)])
def test_the_kernel_for_cpus_is_told_to_round(product_dtype, rounded):
    calls = [e for e in program("cpu", product_dtype, jax.grad) if e.primitive.name == "ffi_call"]
    told = [
        dict(e.params["attributes"])["rounded"]
        for e in calls
        if "attention" in e.params["target_name"]
    ]
    assert told == [rounded, rounded]  # forward and backward
