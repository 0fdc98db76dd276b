"""What the backward pass computes again if attention's results are kept."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.extend.core import jaxprs_in_params

from rope_jax.attention import BACKENDS
from rope_jax.attention.dense import dense_attention
from rope_jax.attention.remat_names import CUDNN_FORWARD, keep_attended
from rope_jax.attention.splash import splash_attention


def count(jaxpr, primitive):
    """Count the operations of a kind in a program and in the programs inside it."""
    found = 0
    for equation in jaxpr.eqns:
        if not equation.outvars:  # a program of which nothing is read, which compilers remove
            continue
        found += equation.primitive.name == primitive
        found += sum(count(inside, primitive) for inside in jaxprs_in_params(equation.params))
    return found


def of_gradient(attention, primitive, transform):
    """Count the operations of a kind in the gradient of a transformed attention."""

    def loss(x):
        return transform(lambda x: attention(2 * x, x, x).sum())(x)

    x = jnp.ones((1, 128, 2, 8))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return count(jax.make_jaxpr(jax.grad(loss))(x).jaxpr, primitive)


def everything(function):
    return function


only_attended = functools.partial(jax.checkpoint, policy=keep_attended)


# with an operation that each forward pass has
@pytest.mark.parametrize(
    ("attention", "primitive"),
    [
        (BACKENDS["blockwise"].attend, "reduce_max"),
        (functools.partial(splash_attention, interpret=True), "pallas_call"),
        (BACKENDS["cpu"].attend, "ffi_call"),  # one forward, one backward
    ],
)
def test_the_forward_pass_runs_once_if_its_results_are_kept(attention, primitive):
    counts = [of_gradient(attention, primitive, kept) for kept in (everything, only_attended)]
    assert counts[0] == counts[1] < of_gradient(attention, primitive, jax.checkpoint)


def test_xla_computes_its_scores_again_but_not_its_output():
    # The forward pass is two products, of queries with keys and of probabilities with values.
    whole, kept, nothing = (
        of_gradient(dense_attention, "dot_general", transform)
        for transform in (everything, only_attended, jax.checkpoint)
    )
    assert (kept, nothing) == (whole + 1, whole + 2)


def test_the_forward_pass_of_cudnn_is_still_called_so():
    assert fused_attention_stablehlo._dot_product_attention_fwd_p_wrapper.name == CUDNN_FORWARD
