"""The programs of attention: what the backward pass computes again, which factors are rounded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.extend.core import jaxprs_in_params

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.base import CUDNN_FORWARD, keep_attended
from rope_jax.attention.splash import Splash
from rope_jax.config import resolve
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import resolve_model
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.rope import Frequencies, Rotary
from tests.compiled import needs_kernels
from tests.programs import equations


def count(jaxpr, primitive):
    """Count the operations of a kind in a program and in the programs inside it."""
    found = 0
    for equation in jaxpr.eqns:
        if not equation.outvars:  # a program of which nothing is read, which compilers remove
            continue
        found += equation.primitive.name == primitive
        found += sum(count(inside, primitive) for inside in jaxprs_in_params(equation.params))
    return found


# The operations of each forward pass, and how many of them the policy computes again: xla's
# products of queries with keys, but not of probabilities with values.
@pytest.mark.parametrize(
    ("attention", "primitive", "again", "forward"),
    [
        (BACKENDS["blockwise"].attend, "reduce_max", 0, 1),
        (Splash(interpret=True).attend, "pallas_call", 0, 1),
        pytest.param(BACKENDS["cpu"].attend, "ffi_call", 0, 1, marks=needs_kernels),
        (BACKENDS["xla"].attend, "dot_general", 1, 2),
    ],
)
def test_attentions_results_are_kept(attention, primitive, again, forward):
    def operations(transform):
        def loss(x):
            return transform(lambda x: attention(2 * x, x, x).sum())(x)

        shape = jax.ShapeDtypeStruct((1, 128, 2, 8), np.float32)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return count(jax.make_jaxpr(jax.grad(loss))(shape).jaxpr, primitive)

    everything = operations(lambda function: function)
    kept = operations(functools.partial(jax.checkpoint, policy=keep_attended))
    assert kept == everything + again
    assert operations(jax.checkpoint) == everything + forward


def test_the_forward_pass_of_cudnn_is_still_called_so():
    assert fused_attention_stablehlo._dot_product_attention_fwd_p_wrapper.name == CUDNN_FORWARD


@pytest.mark.parametrize(
    ("dtype", "product_dtype", "multiplies_bfloat16", "rounded"),
    [
        ("float32", None, True, False),
        ("float32", "bfloat16", False, True),
        ("bfloat16", None, True, True),
        ("bfloat16", None, False, False),
    ],
)
@pytest.mark.parametrize("backend", ["xla", "blockwise", pytest.param("cpu", marks=needs_kernels)])
def test_factors_of_attention_are_rounded_where_those_of_other_products_are(
    monkeypatch, backend, dtype, product_dtype, multiplies_bfloat16, rounded
):
    monkeypatch.setattr(resolve, "_multiplies_bfloat16", lambda: multiplies_bfloat16)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    config = ModelConfig(**sizes, attention=backend, dtype=dtype, product_dtype=product_dtype)
    model = LanguageModel(resolve_model(config).spec(), 61)
    rotary = Rotary.shared(Frequencies.from_float64(10.0 ** -np.arange(4)))

    def loss(params, tokens):
        positions = jnp.arange(130)[None]
        return model.nll(params, DecoderInputs(tokens, tokens, positions, None, rotary)).sum()

    tokens = jax.ShapeDtypeStruct((2, 130), np.int32)
    params = model.abstract_params()
    derived = jax.grad(loss) if backend == "cpu" else loss
    program = list(equations(jax.make_jaxpr(derived)(params, tokens).jaxpr))
    if backend == "cpu":
        calls = [e.params for e in program if e.primitive.name == "ffi_call"]
        found = [
            dict(call["attributes"])["rounded"]
            for call in calls
            if "attention" in call["target_name"]
        ]
        assert found == [rounded] * 2  # forward and backward
        return
    products = [e.invars for e in program if e.primitive.name == "dot_general"]
    of_attention = [p for p in products if p[0].aval.shape[:2] == (2, 4)]  # windows and heads
    assert len(of_attention) >= 2
    dtypes = {x.aval.dtype for pair in of_attention for x in pair}
    assert dtypes == {jnp.dtype("bfloat16" if rounded else "float32")}
