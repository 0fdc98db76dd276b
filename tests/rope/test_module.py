"""The Flax module against the pure functions it is built on.

Shapes: B batch, T length, N heads, K key-value heads, H head dim.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rope_jax.rope import RotaryEmbedding, RotaryGeometry, cos_sin, parse_scaling
from rope_jax.rope.module import RotaryNumbers
from tests.rope.forms import rotate_complex

GEOMETRY = RotaryGeometry(16, 1e4, 128)
B, T, N, K, H = 2, 10, 4, 2, 24
POSITIONS = np.array([np.arange(T), np.arange(T) + 500], np.int32)
Q, KEYS = (
    jnp.asarray(np.random.default_rng(count).standard_normal((B, T, count, H)), jnp.float32)
    for count in (N, K)
)


@nnx.jit
def applied(module, q, k, positions, seq_len=None):
    return module(q, k, positions, seq_len)


def expected(x, scaling, layout="half"):
    theta, m = scaling.scaled(GEOMETRY)
    angles = (POSITIONS[..., None] * theta)[:, :, None]
    turned = m * rotate_complex(np.float64(x[..., :16]), angles, layout)
    return np.concatenate([turned, x[..., 16:]], -1)


def test_the_module_matches_the_forms():
    scaling = parse_scaling({"type": "yarn", "factor": 4.0, "query_scale": {"type": "logn"}})
    module = RotaryEmbedding(GEOMETRY, scaling, layout="interleaved")
    assert not jax.tree.leaves(nnx.state(module, nnx.Param))
    assert len(jax.tree.leaves(nnx.state(module, RotaryNumbers))) == 2
    # the query scale reaches whole queries and no key
    factor = np.maximum(1, np.log(POSITIONS + 1) / np.log(128))[..., None, None]
    assert factor[1].min() > 1.2
    wanted = factor * expected(Q, scaling, "interleaved"), expected(KEYS, scaling, "interleaved")
    for dtype, error in ((jnp.float32, 2e-6), (jnp.bfloat16, 0.05)):
        low = Q.astype(dtype), KEYS.astype(dtype)
        for found, right in zip(applied(module, *low, POSITIONS), wanted, strict=True):
            assert found.dtype == dtype
            np.testing.assert_allclose(np.float32(found), right, atol=error)


def test_a_length_dependent_strategy_follows_each_row():
    scaling = parse_scaling({"type": "dynamic_ntk", "factor": 2.0})
    module = RotaryEmbedding(GEOMETRY, scaling)
    assert not jax.tree.leaves(nnx.state(module, RotaryNumbers))
    found, _ = applied(module, Q, KEYS, POSITIONS, jnp.array([T, 1000]))
    for row, length in enumerate((T, 1000)):
        s = max(1, 2 * length / 128 - 1)
        fixed = parse_scaling({"type": "ntk", "factor": s})
        np.testing.assert_allclose(found[row], expected(Q, fixed)[row], atol=3e-4)  # 509 × 3e-7
    with pytest.raises(ValueError, match=r"^seq_len: dynamic_ntk depends on the text's length"):
        module(Q, KEYS, POSITIONS)


def test_numbers_can_be_replaced_and_fitted():
    module = RotaryEmbedding(GEOMETRY, parse_scaling("none"))
    near = parse_scaling({"type": "pi", "factor": 1.02})
    wanted = expected(Q, near).astype(np.float32)

    @nnx.jit
    def step(module):
        def loss(module):
            return jnp.mean((module(Q[:1], KEYS[:1], POSITIONS[:1])[0] - wanted[:1]) ** 2)

        value, gradient = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, RotaryNumbers))(module)
        module.inv_freq[...] -= 0.02 * gradient.inv_freq[...]
        return value

    losses = [float(step(module)) for _ in range(60)]
    assert losses[-1] < 0.05 * losses[0]
    # nothing is stale: replaced frequencies take effect, up to rounding
    module.inv_freq[...] = jnp.float32(near.scaled(GEOMETRY)[0])
    np.testing.assert_allclose(applied(module, Q, KEYS, POSITIONS)[0], wanted, atol=1e-4)


def test_replacing_a_frequency_drops_its_old_remainder():
    far = np.array([[10**7, 10**7 - 3]], np.int32)
    module = RotaryEmbedding(RotaryGeometry(64), parse_scaling("none"))
    module.inv_freq[...] *= np.float32(0.5)
    wanted = np.cos(np.float64(far[0, :, None]) * np.float64(module.inv_freq[...]))
    pure = parse_scaling("none").frequencies(RotaryGeometry(64))
    pure = pure.with_inv_freq(np.asarray(module.inv_freq[...]))
    for frequencies in (module.frequencies(), pure):
        # the old remainder, added to the new frequency, would be off by 0.06
        cos, _ = jax.jit(cos_sin)(frequencies, far)
        np.testing.assert_allclose(cos[0], wanted, atol=1e-6)


@pytest.mark.usefixtures("wrong_types")
def test_a_wrong_layout_is_refused_at_once():
    with pytest.raises(ValueError, match=r"^layout: 'foo' is not one of half, interleaved"):
        RotaryEmbedding(GEOMETRY, parse_scaling("none"), layout="foo")
