"""Each position encoding against its definition, written as loops in float64."""

import decimal
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.positions.encodings.biases import t5_buckets
from rope_jax.positions.interaction import Block, Indices
from tests.positions.encodings.dense import (
    POSITIONS,
    SIZES,
    Rotation,
    S,
    attend,
    causal,
    layer_logits,
    made,
    normal,
    random_qkv,
    slow_logits,
)

N, H = SIZES.heads, SIZES.head_dim
PAIRS = [(i, j) for i in range(S) for j in range(i + 1)]
DISTANCES = np.maximum(np.arange(S)[:, None] - np.arange(S), 0)


def found_logits(encoding, parameters, q, k, positions=POSITIONS, **settings):
    @jax.jit
    def logits(parameters, q, k):
        return layer_logits(encoding, parameters, q, k, positions, **settings)

    found = logits(parameters, q, k)
    return causal(found.reshape(len(found), -1, S, S))


def float64(parameters):
    return {name: np.float64(x) for name, x in parameters.items()}


def with_bias(q, k, bias):
    """Return q·k/√H + bias [N, S, S] of all visible pairs."""
    return causal(slow_logits(q, k) + bias)


def by_pair(q, k, logit):
    """Return logit(head, q_i, k_j, i, j) of all visible pairs; the others are −∞."""
    logits = np.full((2, N, S, S), -np.inf)
    for head in range(N):
        for i, j in PAIRS:
            pair = np.float64(q[:, i, head]), np.float64(k[:, j, head // 2])
            logits[:, head, i, j] = logit(head, *pair, i, j)
    return logits


# Added to the embeddings.


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoidal(width):
    positions = [0, 1, 77, 65_535, 9_999_999]
    x = normal(1, 2, len(positions), width)
    encoding, parameters = made("sinusoidal")
    found = jax.jit(encoding.embed)(parameters, x, np.int32([positions]))
    for row, k in enumerate(positions):
        for c in range(width):
            p = (math.cos if c % 2 else math.sin)(k / 10000 ** ((c - c % 2) / width))
            wanted = np.float64(x[:, row, c]) * math.sqrt(width) + p
            np.testing.assert_allclose(found[:, row, c], wanted, atol=1e-6)


def test_learned_adds_the_row_of_the_position_and_nan_outside_its_table():
    encoding, parameters = made("learned", length=10)
    x = normal(1, 2, 4, SIZES.hidden_size)
    positions = np.array([[0, 9, 4, 1], [9, 10, 2**31 - 1, -1]], np.int32)
    found = np.asarray(jax.jit(encoding.embed)(parameters, x, positions))
    table = np.asarray(parameters["table"][0])
    np.testing.assert_array_equal(found[0], x[0] + table[positions[0]])
    assert np.isfinite(found[1, 0]).all()
    assert np.isnan(found[1, 1:]).all()


def test_sizes_that_follow_from_the_longest_trained_window():
    learned = type(made("learned")[0])
    assert learned().longest is None
    with pytest.raises(ValueError, match="length"):
        learned().parameter_shapes(SIZES)
    assert learned().resolved(300).parameter_shapes(SIZES) == {"table": (1, 300, SIZES.hidden_size)}
    assert learned(length=64).resolved(300).longest == 64
    fire = type(made("fire")[0])
    assert [fire().resolved(n).threshold for n in (2048, 2)] == [512, 1]
    assert fire(threshold=100).resolved(2048).threshold == 100
    with pytest.raises(ValueError, match="threshold"):
        fire().layer_params({}, POSITIONS, 4, 1)


# Added to the logits.


def test_shaw():
    encoding, parameters = made("shaw")
    tables = float64(parameters)
    q, k, v = random_qkv(S)

    def distance(i, j):
        return min(i - j, encoding.max_distance)

    def logit(head, query, key, i, j):  # a key of its own for each pair
        return (query * (key + tables["keys"][0, distance(i, j)])).sum(-1) / math.sqrt(H)

    logits = by_pair(q, k, logit)
    np.testing.assert_allclose(found_logits(encoding, parameters, q, k), causal(logits), atol=1e-5)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.zeros((2, S, N, H))
    for head in range(N):
        for i, j in PAIRS:
            value = v[:, j, head // 2] + tables["values"][0, distance(i, j)]
            out[:, i, head] += weights[:, head, i, j, None] * value
    found = jax.jit(functools.partial(attend, encoding, backend="xla"))(parameters, q, k, v)
    np.testing.assert_allclose(found, out, atol=1e-5)


@pytest.mark.parametrize("heads", [4, 6])
def test_alibi(heads):
    encoding, parameters = made("alibi")
    q, k, _ = random_qkv(S, SIZES._replace(heads=heads))
    # 6 heads: those of 4, then the first and third of 8
    slopes = np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8])[:heads, None, None]
    wanted = with_bias(q, k, -slopes * DISTANCES)
    np.testing.assert_allclose(found_logits(encoding, parameters, q, k), wanted, atol=1e-5)


def test_t5():
    encoding, parameters = made("t5")
    bias = float64(parameters)["bias"][0]
    q, k, _ = random_qkv(S)
    # 8 buckets, 12 tokens: 4 of one distance each; the others begin at 4·3^(k/4), rounded up.
    starts = np.array([0, 1, 2, 3, 4, 6, 7, 10])
    bucket = (starts <= DISTANCES[..., None]).sum(-1) - 1
    wanted = with_bias(q, k, bias[bucket].transpose(2, 0, 1))
    np.testing.assert_allclose(found_logits(encoding, parameters, q, k), wanted, atol=1e-5)


def slow_bucket(distance, buckets, max_distance):
    """Return the bucket by the formula of T5's code, with logarithms of 40 digits."""
    exact = buckets // 2
    if distance < exact:
        return distance
    e, far = decimal.Decimal(exact), decimal.Decimal(max_distance)
    with decimal.localcontext(prec=40):
        share = (distance / e).ln() / (far / e).ln()
        # 1e-30: a share that is a fraction, such as 1/4 = ln(32/16)/ln(256/16), is rounded too.
        return min(buckets - 1, exact + int(share * exact + decimal.Decimal("1e-30")))


@pytest.mark.parametrize(
    ("buckets", "max_distance", "step"), [(32, 128, 1), (32, 256, 1), (64, 1000, 7), (2, 2, 1)]
)
def test_t5_buckets(buckets, max_distance, step):
    found = t5_buckets(buckets, max_distance)
    assert (found.size, found[-1]) == (max_distance + 1, buckets - 1)
    for distance in range(0, max_distance + 1, step):
        assert found[distance] == slow_bucket(distance, buckets, max_distance), distance


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"buckets": 7}, "buckets: 7 is odd"), ({"max_distance": 4}, "max_distance: 4 is not above")],
)
def test_t5_settings_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        made("t5", **settings)


def test_kerple():
    encoding, parameters = made("kerple")
    found = float64(parameters)
    r1, r2 = (np.maximum(found[name][0], 0.01)[:, None, None] for name in ("r1", "r2"))
    q, k, _ = random_qkv(S)
    wanted = with_bias(q, k, -r1 * np.log(1 + r2 * DISTANCES))
    np.testing.assert_allclose(found_logits(encoding, parameters, q, k), wanted, atol=1e-5)


def test_parameters_out_of_bounds_are_clipped_where_used_and_can_come_back():
    negative = {name: np.full((1, 4), -1, np.float32) for name in ("r1", "r2")}
    outside = {"delta": np.array([[[0.5, -7.0, -1.0]]], np.float32)}
    kerple, pope = made("kerple")[0], made("pope")[0]

    @jax.jit
    def values_and_gradients(negative, outside):
        table, table_vjp = jax.vjp(lambda p: kerple.layer_params(p, POSITIONS, 4, 1), negative)
        turn, turn_vjp = jax.vjp(lambda p: pope.layer_params(p, POSITIONS, 3, 1), outside)
        one = {"cos_delta": jnp.zeros((1, 1, 3)), "sin_delta": jnp.ones((1, 1, 3))}
        return table, table_vjp(jax.tree.map(jnp.ones_like, table))[0], turn, turn_vjp(one)[0]

    table, gradient, turn, of_delta = values_and_gradients(negative, outside)
    wanted = -0.01 * np.log1p(0.01 * np.arange(S))
    np.testing.assert_allclose(table["by_distance"][0, 0], wanted, atol=1e-8)
    assert all((np.asarray(g) < 0).all() for g in gradient.values())
    np.testing.assert_allclose(turn["cos_delta"][0, 0], [1, 1, math.cos(1)], atol=1e-6)
    np.testing.assert_allclose(turn["sin_delta"][0, 0], [0, 0, -math.sin(1)], atol=1e-6)
    np.testing.assert_allclose(of_delta["delta"][0, 0], [1, 1, math.cos(1)], atol=1e-6)


def test_initial_parameters_are_those_of_the_authors():
    _, kerple = made("kerple", SIZES._replace(heads=2000))
    for name, high in (("r1", 2.0), ("r2", 1.0)):
        drawn = np.asarray(kerple[name])
        assert 0 <= drawn.min() < 0.01 < 0.99 * high < drawn.max() < high
        np.testing.assert_allclose(drawn.mean(), high / 2, rtol=0.05)
    _, fire = made("fire", SIZES._replace(layers=50))
    assert (np.asarray(fire["c"]) == np.float32(0.1)).all()
    assert (np.asarray(fire["multiplier"]) == 1).all()
    for name, limit in (("hidden_kernel", 1), ("hidden_bias", 1), ("output_kernel", 32**-0.5)):
        drawn = np.asarray(fire[name])
        assert 0.98 * limit < np.abs(drawn).max() <= limit
        np.testing.assert_allclose(drawn.std(), limit / math.sqrt(3), rtol=0.05)
    assert not np.any(made("pope", initial_delta="zero")[1]["delta"])


def test_fire_with_documents():
    encoding, parameters = made("fire")
    p = {name: x[0] for name, x in float64(parameters).items()}
    positions = np.array([[*range(18), *range(6)], [*range(5), *range(19)]], np.int32)
    q, k, _ = random_qkv(S)

    def psi(x):
        return np.log(abs(p["c"] * x) + 1)

    ratio = psi(DISTANCES) / (psi(np.maximum(positions, 12.0))[..., None] + 1e-6)  # [2, S, S]
    hidden = np.maximum(p["hidden_kernel"] * ratio[..., None] + p["hidden_bias"], 0)
    wanted = with_bias(q, k, (hidden @ p["output_kernel"]).transpose(0, 3, 1, 2))
    found = found_logits(encoding, parameters, q, k, positions)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


# In place of q·k.


def slow_xpos(q, k, distance, rotation, scale_base):
    """Return the logit of one query and one key, [.., H] each, in float64."""
    dim = rotation.dim
    theta = rotation.base ** (-np.arange(0, dim, 2) / dim)
    zeta = (np.arange(0, dim, 2) + 0.4 * dim) / (1.4 * dim)

    def pairs(x):
        halves = np.split(x[..., :dim], 2, -1)
        a, b = halves if rotation.layout == "half" else (x[..., 0:dim:2], x[..., 1:dim:2])
        return a + 1j * b

    turned = (pairs(q) * pairs(k).conj() * np.exp(1j * distance * theta)).real
    decayed = turned * zeta ** (distance / scale_base)
    rest = (q[..., dim:] * k[..., dim:]).sum(-1)
    return (decayed.sum(-1) + rest) / math.sqrt(q.shape[-1])


@pytest.mark.parametrize(("layout", "dim"), [("half", 8), ("interleaved", 4)])
def test_xpos(layout, dim):
    encoding, parameters = made("xpos")
    rotation = Rotation(layout=layout, dim=dim)
    q, k, _ = random_qkv(S)
    wanted = by_pair(q, k, lambda _, q, k, i, j: slow_xpos(q, k, i - j, rotation, 64))
    found = found_logits(encoding, parameters, q, k, rotation=rotation)
    np.testing.assert_allclose(found, causal(wanted), atol=1e-5)


def test_xpos_is_exact_at_65_thousand_tokens():
    """512 queries, not rotated, at the end of the window and 512 keys, at the paper's 512."""
    encoding, _ = made("xpos", scale_base=512.0)
    params = {"decay": encoding.layer_params({}, POSITIONS, H // 2, 1)["decay"][0]}
    last = np.arange(65_024, 65_536, dtype=np.int32)
    q, k = normal(1, 1, 1, 512, H), normal(2, 1, 1, 512, H)

    @jax.jit
    def scores(key_index):
        others = jnp.asarray(k), Indices(jnp.asarray(last), key_index)
        found, vjp = jax.vjp(lambda q: encoding.scores(params, Block(q[:, :, None], *others)), q)
        return found[0, 0, 0], vjp(jnp.ones_like(found))[0]

    products = np.float64(q[0, 0, :, None]) * k[0, 0]  # pairs are (i, i + H/2)
    zeta = np.tile((np.arange(0, H, 2) + 0.4 * H) / (1.4 * H), 2)
    for distance in (0, 512, 4096, 20_480, 65_024):
        found, gradient = map(np.asarray, scores(jnp.asarray(last - distance)))
        assert np.isfinite(found).all()
        assert np.isfinite(gradient).all()
        apart = last[:, None] - (last - distance)
        decay = zeta ** (np.maximum(apart, 0)[..., None] / 512)
        error = np.abs(found - (products * decay).sum(-1))
        # the slowest pair, which decays least, sets the scale
        assert (error <= 5e-5 * decay[..., -1] + 1e-37)[apart >= 0].all()


def test_xpos_does_not_overflow_where_a_whole_window_is_one_block():
    """16,384 tokens; the logits of masked keys must be finite too, or masking makes them NaN."""
    encoding, _ = made("xpos", scale_base=512.0)
    params = {"decay": encoding.layer_params({}, POSITIONS, 4, 1)["decay"][0]}
    index = np.arange(16_384, dtype=np.int32)
    x = np.zeros((1, 1, 16_384, 8), np.float32)
    x[:, :, [0, 1, 8000, 16_382, 16_383]] = 10
    block = Block(x[:, :, None, :64], x, Indices(index[:64], index))
    found = jax.jit(encoding.scores)(params, block)
    assert np.isfinite(found).all()
    zeta = (np.arange(0, 8, 2) + 3.2) / 11.2
    np.testing.assert_allclose(found[0, 0, 0, 1, 0], 200 * (zeta ** (1 / 512)).sum(), rtol=1e-5)


def test_pope():
    encoding, parameters = made("pope")
    delta = float64(parameters)["delta"][0]
    assert delta.min() < -6
    q, k, _ = random_qkv(S)
    theta = 100.0 ** (-np.arange(H) / H)

    def logit(head, query, key, i, j):
        magnitudes = np.log1p(np.exp(query)) * np.log1p(np.exp(key))
        cosines = np.cos((j - i) * theta + delta[head])
        return (magnitudes * cosines).sum(-1) / math.sqrt(H)

    wanted = causal(by_pair(q, k, logit))
    np.testing.assert_allclose(found_logits(encoding, parameters, q, k), wanted, atol=1e-5)
    with pytest.raises(ValueError, match="rotary_dim: is 8, but pope"):
        found_logits(encoding, parameters, q, k, rotation=Rotation(dim=8))
