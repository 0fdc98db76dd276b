"""The network's values and derivatives, against its formula as JAX differentiates it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.positions.functions import mlp


@pytest.mark.parametrize("batch", [1, 2])
def test_mlp_and_its_gradients(batch):
    rng = np.random.default_rng(0)
    shapes = (batch, 6, 9), (32,), (32,), (32, 3), (2, 3, 6, 9)
    *arguments, wanted = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes)

    def formula(x, kernel, shift, outputs):
        before = jnp.einsum("bts,w->btsw", x, kernel) + shift[None, None, None]
        return jnp.einsum("btsw,wn->bnts", jax.nn.relu(before), outputs)

    def loss(f):
        return lambda *arguments: (wanted * f(*arguments) ** 2).sum()

    with jax.numpy_rank_promotion("allow"):
        np.testing.assert_allclose(mlp(*arguments), formula(*arguments), atol=1e-5)
        found = jax.jit(jax.grad(loss(mlp), argnums=(0, 1, 2, 3)))(*arguments)
        right = jax.jit(jax.grad(loss(formula), argnums=(0, 1, 2, 3)))(*arguments)
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-2)
