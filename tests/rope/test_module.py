"""The Flax module against the pure functions it stands on.

Shapes: B batch, T length, N heads, K key-value heads, H head dim.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rope_jax.rope import RotaryEmbedding, RotaryGeometry, cos_sin, parse_scaling, rotate
from rope_jax.rope.module import RotaryNumbers

pytestmark = pytest.mark.usefixtures("compiled_quickly")

GEOMETRY = RotaryGeometry(16, 1e4, 128)
B, T, N, K, H = 2, 10, 4, 2, 24
POSITIONS = np.array([np.arange(T), np.arange(T) + 500], np.int32)


angles = jax.jit(cos_sin)


def qk(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = ((B, T, N, H), (B, T, K, H))
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


@nnx.jit
def applied(module, q, k, positions, seq_len=None):
    return module(q, k, positions, seq_len)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_is_the_pure_functions(layout, dtype):
    scaling = parse_scaling({"type": "yarn", "factor": 4.0})
    module = RotaryEmbedding(GEOMETRY, scaling, layout=layout)
    cos, sin = angles(scaling.frequencies(GEOMETRY), POSITIONS)
    for x, found in zip(qk(dtype), applied(module, *qk(dtype), POSITIONS), strict=True):
        assert found.dtype == dtype
        wanted = rotate(x, cos, sin, layout)
        np.testing.assert_allclose(
            np.float32(found), np.float32(wanted), atol=1e-6 if dtype == jnp.float32 else 0.04
        )
        np.testing.assert_array_equal(found[..., 16:], x[..., 16:])


def test_the_query_scale_reaches_whole_queries_and_no_key():
    settings = {"type": "none", "query_scale": {"type": "logn"}}
    plain = RotaryEmbedding(GEOMETRY, parse_scaling({"type": "none"}))
    scaled = RotaryEmbedding(GEOMETRY, parse_scaling(settings))
    (q0, k0), (q1, k1) = (applied(m, *qk(), POSITIONS) for m in (plain, scaled))
    factor = np.maximum(1, np.log(POSITIONS + 1) / np.log(128))[..., None, None]
    assert factor[1].min() > 1.2
    np.testing.assert_allclose(q1, q0 * np.float32(factor), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(k0, k1)
    low = applied(scaled, *qk(jnp.bfloat16), POSITIONS)
    assert low[0].dtype == low[1].dtype == jnp.bfloat16


def test_a_length_dependent_strategy_follows_each_row():
    scaling = parse_scaling({"type": "dynamic_ntk", "factor": 2.0})
    module = RotaryEmbedding(GEOMETRY, scaling)
    assert not jax.tree.leaves(nnx.state(module, RotaryNumbers))
    q, k = qk()
    found = applied(module, q, k, POSITIONS, jnp.array([T, 1000]))
    for row, length in enumerate((T, 1000)):
        cos, sin = angles(scaling.frequencies(GEOMETRY, length), POSITIONS[row])
        wanted = rotate(q[row], cos, sin)
        np.testing.assert_allclose(found[0][row], wanted, atol=3e-4)  # 509 × 3e-7 radians
    with pytest.raises(ValueError, match=r"^seq_len: dynamic_ntk depends on the text's length"):
        module(q, k, POSITIONS)


def test_numbers_can_be_replaced_and_fitted():
    module = RotaryEmbedding(GEOMETRY, parse_scaling({"type": "none"}))
    target = RotaryEmbedding(GEOMETRY, parse_scaling({"type": "pi", "factor": 1.02}))
    q, k = qk()
    wanted = applied(target, q, k, POSITIONS[:1])

    @nnx.jit
    def step(module):
        def loss(module):
            found = module(q, k, POSITIONS[:1])
            return sum(jnp.mean((a - b) ** 2) for a, b in zip(found, wanted, strict=True))

        value, gradient = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, RotaryNumbers))(module)
        module.inv_freq[...] -= 0.02 * gradient.inv_freq[...]
        return value

    losses = [float(step(module)) for _ in range(40)]
    assert losses[-1] < 0.05 * losses[0]
    # nothing stale: the replaced frequencies are what turns, but for what rounding took off them
    module.inv_freq[...] = target.inv_freq[...]
    for a, b in zip(
        applied(module, q, k, POSITIONS), applied(target, q, k, POSITIONS), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_a_replaced_frequency_leaves_nothing_behind():
    far = np.array([[10**7, 10**7 - 3]], np.int32)
    module = RotaryEmbedding(RotaryGeometry(64), parse_scaling({"type": "none"}))
    module.inv_freq[...] *= np.float32(0.5)
    angles_there = np.float64(far[0, :, None]) * np.float64(module.inv_freq[...])
    cos, _ = angles(module.frequencies(), far)
    # the old remainder, added to the new frequency, would be off by 0.06
    np.testing.assert_allclose(cos[0], np.cos(angles_there), atol=1e-6)
    pure = parse_scaling({"type": "none"}).frequencies(RotaryGeometry(64))
    cos, _ = angles(pure.with_inv_freq(np.asarray(module.inv_freq[...])), far)
    np.testing.assert_allclose(cos[0], np.cos(angles_there), atol=1e-6)


@pytest.mark.usefixtures("wrong_types")
def test_a_wrong_layout_is_refused_at_once():
    with pytest.raises(ValueError, match=r"^layout: 'foo' is not one of half, interleaved"):
        RotaryEmbedding(GEOMETRY, parse_scaling({"type": "none"}), layout="foo")


def test_it_has_no_parameters():
    module = RotaryEmbedding(GEOMETRY, parse_scaling({"type": "none"}))
    assert not jax.tree.leaves(nnx.state(module, nnx.Param))
    assert len(jax.tree.leaves(nnx.state(module, RotaryNumbers))) == 2
