"""Each position encoding against its definition, written as loops in float64."""

import decimal
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.positions.encodings import Sizes
from rope_jax.positions.encodings.absolute import LearnedEncoding
from rope_jax.positions.encodings.biases import alibi_slopes, t5_buckets
from rope_jax.positions.encodings.fire import FIREEncoding
from tests.positions.encodings.dense import (
    SIZES,
    Layer,
    Rotation,
    causal,
    made,
    normal,
    random_qkv,
    slow_logits,
)

pytestmark = pytest.mark.usefixtures("compiled_quickly")

S, N, H = 40, SIZES.heads, SIZES.head_dim
POSITIONS = jnp.arange(S, dtype=jnp.int32)[None]
PAIRS = [(i, j) for i in range(S) for j in range(i + 1)]


def found_logits(encoding, parameters, q, k, rotation=None, positions=POSITIONS):
    layer = Layer(encoding, parameters, positions, H, rotation=rotation)
    return causal(layer.logits(q, k, block=16))


def float64(parameters):
    return {name: np.asarray(x, np.float64) for name, x in parameters.items()}


def with_bias(q, k, bias):
    """Return q·k/√H + bias(head, i, j) of all visible pairs."""
    logits = slow_logits(q, k, H)
    for head in range(N):
        for i, j in PAIRS:
            logits[:, head, i, j] += bias(head, i, j)
    return causal(logits)


# Added to the embeddings.


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoidal(width):
    positions = [0, 1, 77, 65_535, 9_999_999]
    x = normal(1, 2, len(positions), width)
    encoding, parameters = made("sinusoidal")
    found = encoding.embed(parameters, x, jnp.asarray([positions], jnp.int32))
    x, found = np.asarray(x, np.float64), np.asarray(found)
    for row, k in enumerate(positions):
        for c in range(width):
            wave = math.cos if c % 2 else math.sin
            p = wave(k / 10000 ** ((c - c % 2) / width))
            wanted = x[:, row, c] * math.sqrt(width) + p
            np.testing.assert_allclose(found[:, row, c], wanted, atol=1e-6)


def test_learned_adds_the_row_of_the_position():
    encoding, parameters = made("learned", length=10)
    x = normal(1, 2, 3, SIZES.hidden_size)
    positions = jnp.asarray([[0, 9, 4], [1, 2, 3]], jnp.int32)
    found = encoding.embed(parameters, x, positions)
    table = np.asarray(parameters["table"][0])
    np.testing.assert_array_equal(found, np.asarray(x) + table[np.asarray(positions)])


def test_learned_gives_nan_outside_its_table():
    encoding, parameters = made("learned", length=10)
    x = normal(1, 1, 4, SIZES.hidden_size)
    embed = jax.jit(encoding.embed)
    found = embed(parameters, x, jnp.asarray([[9, 10, 2**31 - 1, -1]], jnp.int32))
    assert np.isfinite(found[0, 0]).all()
    assert np.isnan(found[0, 1:]).all()


def test_learned_fits_the_longest_trained_window():
    encoding = LearnedEncoding()
    assert encoding.longest is None
    with pytest.raises(ValueError, match="length"):
        encoding.parameter_shapes(SIZES)
    assert encoding.fitted(300).longest == 300
    assert encoding.fitted(300).parameter_shapes(SIZES) == {"table": (1, 300, SIZES.hidden_size)}
    assert LearnedEncoding(length=64).fitted(300).longest == 64


# Added to the logits.


def test_shaw():
    encoding, parameters = made("shaw")
    tables = float64(parameters)
    q, k, v = (np.asarray(x) for x in random_qkv(S))

    def distance(i, j):
        return min(i - j, encoding.max_distance)

    # The definition: a key of its own for each pair.
    logits = np.full((2, N, S, S), -np.inf)
    for head in range(N):
        for i, j in PAIRS:
            key = np.asarray(k[:, j, head // 2], np.float64) + tables["keys"][0, distance(i, j)]
            query = np.asarray(q[:, i, head], np.float64)
            logits[:, head, i, j] = (query * key).sum(-1) / math.sqrt(H)
    np.testing.assert_allclose(found_logits(encoding, parameters, q, k), causal(logits), atol=1e-5)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.zeros((2, N, S, H))
    for head in range(N):
        for i, j in PAIRS:
            value = np.asarray(v[:, j, head // 2], np.float64) + tables["values"][0, distance(i, j)]
            out[:, head, i] += weights[:, head, i, j, None] * value
    found = Layer(encoding, parameters, POSITIONS, H).attend(q, k, v, block=16)
    np.testing.assert_allclose(found, out, atol=1e-5)


@pytest.mark.parametrize("heads", [4, 6])
def test_alibi(heads):
    encoding, parameters = made("alibi")
    sizes = SIZES._replace(heads=heads)
    q, k, _ = random_qkv(S, sizes)
    slopes = {4: [1 / 4, 1 / 16, 1 / 64, 1 / 256]}
    # 6 heads: those of 4, then the first and third of 8
    slopes[6] = [*slopes[4], 1 / 2, 1 / 8]
    logits = slow_logits(q, k, H)
    for head in range(heads):
        for i, j in PAIRS:
            logits[:, head, i, j] -= slopes[heads][head] * (i - j)
    np.testing.assert_allclose(found_logits(encoding, parameters, q, k), causal(logits), atol=1e-5)


@pytest.mark.parametrize("heads", [4, 12])
def test_the_bias_of_alibi_is_exact_in_bfloat16(heads):
    encoding, _ = made("alibi")
    q, k = (jnp.zeros((1, heads, *shape, 8), jnp.bfloat16) for shape in ((1, 2), (5,)))
    distances = np.array([0, 3, 257, 65_537, 1_234_567])
    last = 2_000_001
    query_index, key_index = (
        jnp.asarray(last - x, jnp.int32) for x in (np.array([1, 0]), distances)
    )
    found = encoding.scores({}, q, k, query_index, key_index)
    slopes = alibi_slopes(heads).astype(np.float32)
    wanted = (-slopes[:, None].astype(np.float64) * distances).astype(np.float32)
    np.testing.assert_allclose(
        found, np.tile(wanted[None, :, None, None], (1, 1, 1, 2, 1)), rtol=2e-7
    )


def test_alibi_slopes_golden():
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    np.testing.assert_array_equal(alibi_slopes(8), eight)
    more = [0.7071067811865476, 0.3535533905932738, 0.1767766952966369, 0.0883883476483184]
    np.testing.assert_allclose(alibi_slopes(12), [*eight, *more], rtol=1e-12)
    np.testing.assert_array_equal(alibi_slopes(1), [1 / 256])


def test_t5():
    encoding, parameters = made("t5")
    bias = float64(parameters)["bias"][0]
    q, k, _ = random_qkv(S)
    # 8 buckets, 12 tokens: 4 of one distance each; the others begin at 4·3^(k/4), rounded up.
    starts = [0, 1, 2, 3, 4, 6, 7, 10]

    def added(head, i, j):
        return bias[max(b for b, start in enumerate(starts) if start <= i - j), head]

    np.testing.assert_allclose(
        found_logits(encoding, parameters, q, k), with_bias(q, k, added), atol=1e-5
    )


def slow_bucket(distance, buckets, max_distance):
    """Return the bucket by the formula of T5's code, with logarithms of 40 digits."""
    exact = buckets // 2
    if distance < exact:
        return distance
    with decimal.localcontext(prec=40):
        e, far = decimal.Decimal(exact), decimal.Decimal(max_distance)
        share = (distance / e).ln() / (far / e).ln()
        # 1e-30: a share that is a fraction, such as 1/4 = ln(32/16)/ln(256/16), is rounded too.
        return min(buckets - 1, exact + int(share * exact + decimal.Decimal("1e-30")))


@pytest.mark.parametrize(
    ("buckets", "max_distance", "longest"),
    [(32, 128, 10_000), (32, 256, 300), (64, 1000, 1100), (2, 2, 5)],
)
def test_t5_buckets_of_every_distance(buckets, max_distance, longest):
    found = t5_buckets(buckets, max_distance)
    for distance in range(longest + 1):
        wanted = slow_bucket(distance, buckets, max_distance)
        assert found[min(distance, max_distance)] == wanted, distance


def test_t5_buckets_golden():
    found = t5_buckets(32, 128)
    starts = [int(np.argmax(found == bucket)) for bucket in range(16, 32)]
    assert starts == [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert found[:16].tolist() == list(range(16))


def test_t5_buckets_are_those_of_its_own_float32_code_at_its_own_settings():
    distance = np.arange(16, 129, dtype=np.float32)
    log = np.log(distance / np.float32(16)) / np.float32(math.log(128 / 16)) * np.float32(16)
    np.testing.assert_array_equal(t5_buckets(32, 128)[16:], np.minimum(31, 16 + log.astype(int)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"buckets": 7}, "buckets: 7 is odd"), ({"max_distance": 4}, "max_distance: 4 is not above")],
)
def test_t5_settings_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        made("t5", **settings)


def test_kerple():
    encoding, parameters = made("kerple")
    r1, r2 = (np.maximum(float64(parameters)[name][0], 0.01) for name in ("r1", "r2"))
    q, k, _ = random_qkv(S)
    wanted = with_bias(q, k, lambda n, i, j: -r1[n] * math.log(1 + r2[n] * (i - j)))
    np.testing.assert_allclose(found_logits(encoding, parameters, q, k), wanted, atol=1e-5)


def test_kerple_parameters_are_drawn_and_bounded_as_by_its_authors():
    sizes = SIZES._replace(heads=2000)
    _, parameters = made("kerple", sizes)
    for name, high in (("r1", 2.0), ("r2", 1.0)):
        drawn = np.asarray(parameters[name])
        assert 0 <= drawn.min() < 0.01 < 0.99 * high < drawn.max() < high
        np.testing.assert_allclose(drawn.mean(), high / 2, rtol=0.05)

    encoding, _ = made("kerple")
    negative = {name: jnp.full((1, 4), -1.0) for name in ("r1", "r2")}
    table = encoding.layer_params(negative, POSITIONS, 4)["by_distance"][0]
    np.testing.assert_allclose(table[0], -0.01 * np.log1p(0.01 * np.arange(S)), atol=1e-8)
    gradient = jax.grad(lambda p: encoding.layer_params(p, POSITIONS, 4)["by_distance"].sum())(
        negative
    )
    assert all((np.asarray(g) < 0).all() for g in gradient.values())


def test_fire_with_documents():
    encoding, parameters = made("fire")
    p = {name: x[0] for name, x in float64(parameters).items()}
    positions = jnp.asarray([[*range(30), *range(10)], [*range(5), *range(35)]], jnp.int32)
    places = np.asarray(positions)
    q, k, _ = random_qkv(S)

    def psi(x):
        return math.log(abs(p["c"] * x) + 1)

    logits = slow_logits(q, k, H)
    for b in range(2):
        for i, j in PAIRS:
            position = max(float(places[b, i]), 12.0)
            ratio = psi(i - j) / (psi(position) + 1e-6)
            hidden = np.maximum(p["hidden_kernel"] * ratio + p["hidden_bias"], 0)
            logits[b, :, i, j] += hidden @ p["output_kernel"]
    found = found_logits(encoding, parameters, q, k, positions=positions)
    np.testing.assert_allclose(found, causal(logits), atol=1e-5)


def test_fire_threshold_is_a_quarter_of_the_longest_trained_window():
    encoding = FIREEncoding()
    assert encoding.fitted(2048).threshold == 512
    assert encoding.fitted(2).threshold == 1
    assert FIREEncoding(threshold=100).fitted(2048).threshold == 100
    with pytest.raises(ValueError, match="threshold"):
        encoding.layer_params({}, POSITIONS, 4)


# In place of q·k.


def slow_pairs(x, dim, layout):
    """Return the pairs of a head's first dimensions as complex numbers, and the other ones."""
    x = np.asarray(x, np.float64)
    if layout == "half":
        a, b = x[..., : dim // 2], x[..., dim // 2 : dim]
    else:
        a, b = x[..., 0:dim:2], x[..., 1:dim:2]
    return a + 1j * b, x[..., dim:]


def slow_xpos(q, k, distance, dim, rotation, scale_base):
    """Return the logit of one query and one key, [.., H] each."""
    theta = rotation.base ** (-np.arange(0, dim, 2) / dim)
    zeta = (np.arange(0, dim, 2) + 0.4 * dim) / (1.4 * dim)
    (q, q_rest), (k, k_rest) = (slow_pairs(x, dim, rotation.layout) for x in (q, k))
    turned = (q * k.conj() * np.exp(1j * distance * theta)).real
    decayed = turned * zeta ** (distance / scale_base)
    width = dim + q_rest.shape[-1]
    return (decayed.sum(-1) + (q_rest * k_rest).sum(-1)) / math.sqrt(width)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dim", [8, 4])
def test_xpos(layout, dim):
    encoding, parameters = made("xpos")
    rotation = Rotation(layout=layout, dim=dim)
    q, k, _ = (np.asarray(x) for x in random_qkv(S))
    logits = np.zeros((2, N, S, S))
    for head in range(N):
        for i, j in PAIRS:
            pair = q[:, i, head], k[:, j, head // 2]
            logits[:, head, i, j] = slow_xpos(*pair, i - j, dim, rotation, encoding.scale_base)
    found = found_logits(encoding, parameters, q, k, rotation)
    np.testing.assert_allclose(found, causal(logits), atol=1e-5)


@pytest.mark.parametrize("distance", [0, 512, 4096, 20_480, 65_024])
def test_xpos_is_exact_at_65_thousand_tokens(distance):
    """One block of 512 queries at the end of the window, and one of keys, at the paper's 512."""
    encoding, parameters = made("xpos", scale_base=512.0)
    rotation = Rotation(base=10_000.0)
    last = np.arange(65_024, 65_536, dtype=np.int32)
    query_index, key_index = jnp.asarray(last), jnp.asarray(last - distance)
    q, k = normal(1, 1, 512, 1, H), normal(2, 1, 512, 1, H)
    numbers = {"decay": encoding.layer_params(parameters, POSITIONS, H // 2)["decay"][0]}
    q_turned, k_turned = (
        turn(numbers, x, *rotation.cos_sin(encoding, H, index[None]), "half")
        for turn, x, index in (
            (encoding.rotate_queries, q, query_index),
            (encoding.rotate_keys, k, key_index),
        )
    )
    q_turned = (q_turned / np.float32(math.sqrt(H))).transpose(0, 2, 1, 3)[:, :, None]
    k_turned = k_turned.transpose(0, 2, 1, 3)
    found = encoding.scores(numbers, q_turned, k_turned, query_index, key_index)[0, 0, 0]
    gradient = jax.grad(
        lambda q: encoding.scores(numbers, q, k_turned, query_index, key_index).sum()
    )(q_turned)
    assert np.isfinite(found).all()
    assert np.isfinite(gradient).all()
    q, k, found = (np.asarray(x) for x in (q, k, found))
    for t in range(0, 512, 37):
        for s in range(0, 512, 41):
            apart = t - s + distance
            if apart >= 0:
                pair = q[0, t, 0], k[0, s, 0]
                wanted = slow_xpos(*pair, apart, H, rotation, 512.0)
                # the slowest pair, which decays least, sets the scale
                scale = ((H - 2 + 0.4 * H) / (1.4 * H)) ** (apart / 512)
                assert abs(found[t, s] - wanted) <= 2e-5 * scale + 1e-37, (t, s)


def test_pope():
    encoding, parameters = made("pope")
    delta = float64(parameters)["delta"][0]
    assert delta.min() < -6
    q, k, _ = (np.asarray(x) for x in random_qkv(S))

    def softplus(x):
        return np.log1p(np.exp(np.asarray(x, np.float64)))

    theta = 100.0 ** (-np.arange(H) / H)
    logits = np.zeros((2, N, S, S))
    for head in range(N):
        for i, j in PAIRS:
            magnitudes = softplus(q[:, i, head]) * softplus(k[:, j, head // 2])
            angle = (j - i) * theta + delta[head]
            logits[:, head, i, j] = (magnitudes * np.cos(angle)).sum(-1) / math.sqrt(H)
    found = found_logits(encoding, parameters, q, k)
    np.testing.assert_allclose(found, causal(logits), atol=1e-5)


def test_pope_delta_starts_at_zero_and_stays_within_a_turn():
    encoding, parameters = made("pope", initial_delta="zero")
    assert (parameters["delta"] == 0).all()
    outside = {"delta": jnp.asarray([[[0.5, -7.0, -1.0]]])}
    numbers = encoding.layer_params(outside, POSITIONS, 3)
    np.testing.assert_allclose(numbers["cos_delta"][0, 0], [1, 1, math.cos(1)], atol=1e-6)
    np.testing.assert_allclose(numbers["sin_delta"][0, 0], [0, 0, -math.sin(1)], atol=1e-6)
    gradient = jax.grad(lambda p: encoding.layer_params(p, POSITIONS, 3)["sin_delta"].sum())(
        outside
    )
    np.testing.assert_allclose(gradient["delta"][0, 0], [1, 1, math.cos(1)], atol=1e-6)


def test_pope_refuses_to_turn_only_some_dimensions():
    encoding, parameters = made("pope")
    q, k, _ = random_qkv(S)
    with pytest.raises(ValueError, match="rotary_dim: is 8, but pope"):
        found_logits(encoding, parameters, q, k, Rotation(dim=8))


def test_initial_parameters_of_fire_are_those_of_its_authors():
    sizes = Sizes(layers=50, hidden_size=24, heads=4, head_dim=8, std=0.02)
    _, parameters = made("fire", sizes)
    assert (parameters["c"] == np.float32(0.1)).all()
    assert (parameters["multiplier"] == 1).all()
    for name, limit in (("hidden_kernel", 1), ("hidden_bias", 1), ("output_kernel", 32**-0.5)):
        drawn = np.asarray(parameters[name])
        assert 0.98 * limit < np.abs(drawn).max() <= limit
        np.testing.assert_allclose(drawn.std(), limit / math.sqrt(3), rtol=0.05)


def test_xpos_does_not_overflow_where_a_whole_window_is_one_block():
    """16,384 tokens; the logits of masked keys must be finite too, or masking makes them NaN."""
    encoding, parameters = made("xpos", scale_base=512.0)
    rate = encoding.layer_params(parameters, POSITIONS, 4)["decay"][0]
    index = jnp.arange(16_384)
    ends = jnp.asarray([0, 1, 8000, 16_382, 16_383])
    x = jnp.zeros((1, 1, 16_384, 8)).at[:, :, ends].set(10.0)
    q, k = x[:, :, None, :64], x  # the first queries, all keys
    found = encoding.scores({"decay": rate}, q, k, index[:64], index)
    assert np.isfinite(found).all()
    zeta = (np.arange(0, 8, 2) + 3.2) / 11.2
    np.testing.assert_allclose(found[0, 0, 0, 1, 0], 200 * (zeta ** (1 / 512)).sum(), rtol=1e-5)


@pytest.mark.parametrize(("buckets", "max_distance"), [(2, 9), (32, 128), (64, 1000), (512, 2**20)])
def test_t5_buckets_of_every_size_begin_where_powers_say(buckets, max_distance):
    found, exact = t5_buckets(buckets, max_distance), buckets // 2
    assert found[-1] == buckets - 1
    assert found.size == max_distance + 1
    np.testing.assert_array_equal(found[:exact], np.arange(exact))
    assert (np.diff(found) >= 0).all()
    for bucket in (exact + 1, buckets - 2, buckets - 1):
        k = bucket - exact
        if k < 1 or not (found == bucket).any():
            continue
        first = int(np.flatnonzero(found == bucket)[0])
        border = max_distance**k * exact ** (exact - k)
        assert first**exact >= border > (first - 1) ** exact
