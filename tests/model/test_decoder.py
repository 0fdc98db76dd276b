"""The decoder against a float64 reference in numpy, and against itself in other settings.

`test_families.py` does the same for decoders other than Llama's.

Shapes: B batch, T length, L layers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.model import ModelConfig
from rope_jax.model.decoder import LanguageModel
from rope_jax.model.resolve import resolve_model
from rope_jax.rope import Frequencies, Rotary, RotaryGeometry, parse_scaling
from tests.model.reference import loud_params, reference_nll

pytestmark = pytest.mark.usefixtures("compiled_quickly")

V, B, T, L = 61, 3, 70, 3  # L = B: code that confuses the two axes must not pass

PLAIN = ModelConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=L, num_attention_heads=4
)


def with_fields(config, **fields):
    return ModelConfig(**config.model_dump() | fields)


# Grouped queries, heads wider than D/N, QK-norm and a separate output matrix.
FULL = with_fields(
    PLAIN,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=12,
    qk_norm=True,
    tie_word_embeddings=False,
    rms_norm_eps=1e-2,
)


# Inputs


def text(seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, V, (B, T + 1)).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


SEGMENTS = np.cumsum(np.random.default_rng(1).random((B, T)) < 0.06, axis=1).astype(np.int32)
POSITIONS = np.arange(T, dtype=np.int32)[None]
# Jumps forward, as when training on skipped positions, and back. Neither changes what is visible.
JUMPS = np.stack(
    [
        np.where(np.arange(T) < 31, np.arange(T), np.arange(T) + 100_000),
        np.concatenate([np.arange(T // 2), np.arange(T // 2)]),
        np.arange(T)[::-1],
    ]
).astype(np.int32)


def frequencies(width, **settings):
    geometry = RotaryGeometry(width, 1e4, 32)
    return parse_scaling({"type": "none"} | settings).frequencies(geometry)


def by_layer(width):
    """Different frequencies and m in every layer; no rotation (NoPE) in the second."""
    layers = [
        frequencies(width, type="yarn", factor=4.0),
        Frequencies.from_float64(np.zeros(width // 2)),
        frequencies(width, type="pi", factor=2.0),
    ]
    leaves = (np.stack(leaf)[:, None] for leaf in zip(*layers, strict=True))
    return Rotary(Frequencies(*leaves), np.ones((1, 1, 1), np.float32))


def by_row_with_query_scale(width):
    """Different frequencies in every row, and queries scaled by layer, row and token."""
    rows = [frequencies(width, type="ntk", factor=float(s)) for s in (1, 2, 8)]
    leaves = (np.stack(leaf)[None] for leaf in zip(*rows, strict=True))
    scale = np.random.default_rng(2).uniform(0.5, 2, (L, B, T)).astype(np.float32)
    return Rotary(Frequencies(*leaves), scale)


def nll_of(config, rotary, positions=POSITIONS, segment_ids=None, layout="half"):
    model = LanguageModel(resolve_model(config), V, layout)
    nll = jax.jit(model.nll)(loud_params(model), *text(), positions, segment_ids, rotary)
    assert nll.dtype == jnp.float32
    return np.asarray(nll)


def assert_agrees(found, config, rotary, positions=POSITIONS, segment_ids=None, layout="half"):
    params = loud_params(LanguageModel(resolve_model(config), V, layout))
    wanted = reference_nll(config, layout, params, *text(), positions, segment_ids, rotary)
    assert wanted.std() > 0.5  # far from a uniform guess, on which any two models agree
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.fixture(scope="module")
def plain():
    """Return nll(tokens, targets, positions, segment_ids) of PLAIN, jitted."""
    model = LanguageModel(resolve_model(PLAIN), V)
    params, rotary = loud_params(model), Rotary.shared(frequencies(8))
    jitted = jax.jit(model.nll)

    def nll(tokens, targets, positions, segment_ids):
        positions = np.broadcast_to(positions, (B, T))  # so that one compilation serves all tests
        return np.asarray(jitted(params, tokens, targets, positions, segment_ids, rotary))

    return nll


# Against the reference


def test_the_plain_model_matches_the_reference(plain):
    assert_agrees(plain(*text(), POSITIONS, None), PLAIN, Rotary.shared(frequencies(8)))


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_the_full_model_with_frequencies_by_layer_matches_the_reference(layers):
    # 8 of 12 dimensions are rotated, one layer has no rotation, and documents are separate.
    config, inputs = with_fields(FULL, layers=layers), (by_layer(8), POSITIONS, SEGMENTS)
    assert_agrees(nll_of(config, *inputs), config, *inputs)


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_frequencies_by_row_query_scales_and_jumps_match_the_reference(layers):
    # Positions jump both ways; the mask goes by index in the window.
    config = with_fields(PLAIN, layers=layers, num_key_value_heads=1)
    inputs = by_row_with_query_scale(8), JUMPS, None, "interleaved"
    assert_agrees(nll_of(config, *inputs), config, *inputs)


@pytest.mark.parametrize(
    ("layers", "windows"),
    [
        ("unrolled", (5, None)),
        ("scanned", (5, None)),  # one repeat of two layers, and one layer more
        ("scanned", (5, None, 20)),
    ],
)
def test_sliding_windows_by_layer_match_the_reference(layers, windows):
    config = with_fields(FULL, layers=layers)
    model = LanguageModel(resolve_model(config), V, "half", windows)
    inputs = loud_params(model), *text(), POSITIONS, SEGMENTS, by_layer(8)
    found = jax.jit(model.nll)(*inputs)
    wanted = reference_nll(config, "half", *inputs, windows)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("layers", "windows", "attention"),
    [
        ("unrolled", (5, None), "xla"),
        ("scanned", (5, 20), "blockwise"),  # one repeat of two layers, and the last layer by itself
        ("scanned", (5,), "xla"),
    ],
)
def test_nll_of_the_last_targets_equals_that_of_all(layers, windows, attention):
    config = with_fields(FULL, layers=layers, attention=attention)
    rotary = by_layer(8)._replace(query_scale=by_row_with_query_scale(8).query_scale)
    model = LanguageModel(resolve_model(config), V, "half", windows)
    inputs = loud_params(model), *text(), JUMPS, SEGMENTS, rotary
    whole = jax.jit(model.nll)(*inputs)
    for last in (1, 7, T):
        found = jax.jit(functools.partial(model.nll, last=last))(*inputs)
        assert found.shape == (B, last)
        np.testing.assert_allclose(found, whole[:, -last:], atol=2e-6)
    # The feed-forward of the last layer computes only those rows.
    program = str(jax.make_jaxpr(functools.partial(model.nll, last=7))(*inputs))
    assert f"f32[{B * 7},48]" in program


def test_gradients_of_different_layers_are_the_same_scanned_and_recomputed():
    rotary, windows = by_layer(8), (5, None)
    found = []
    for fields in ({}, {"layers": "scanned", "remat": "products"}):
        model = LanguageModel(resolve_model(with_fields(FULL, **fields)), V, "half", windows)

        def loss(*inputs, model=model):
            return model.nll(*inputs).sum()

        inputs = loud_params(model), *text(), POSITIONS, SEGMENTS, rotary
        found.append(jax.jit(jax.grad(loss))(*inputs))
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)


# Against itself in other settings


def test_only_differences_of_positions_matter(plain):
    # With positions in bfloat16, or angles in float32, an offset of 1,000,000 would change the NLL.
    here = plain(*text(), POSITIONS, None)
    np.testing.assert_allclose(plain(*text(), POSITIONS + 1_000_000, None), here, atol=2e-5)
    assert np.max(np.abs(plain(*text(), 2 * POSITIONS, None) - here)) > 0.1


@pytest.mark.parametrize("positions", [POSITIONS, JUMPS], ids=["in order", "jumping"])
def test_later_tokens_do_not_change_earlier_losses(plain, positions):
    (tokens, targets), (others, _) = text(), text(seed=1)
    mixed = np.where(np.arange(T) < 40, tokens, others)
    before, after = plain(tokens, targets, positions, None), plain(mixed, targets, positions, None)
    np.testing.assert_array_equal(before[:, :40], after[:, :40])
    assert np.all(before[:, 40:] != after[:, 40:])


def test_packed_documents_do_not_see_each_other(plain):
    # Two documents in one row, each with positions from 0, against each in its own row.
    tokens, targets = text()
    first, second = np.arange(T) < 30, np.arange(T) >= 30
    positions = (np.arange(T) - 30 * second)[None].astype(np.int32)
    packed = plain(tokens, targets, positions, np.tile(second, (B, 1)).astype(np.int32))
    unpacked = plain(tokens, targets, POSITIONS, None)
    np.testing.assert_array_equal(packed[:, first], unpacked[:, first])
    moved = [np.roll(x, -30, axis=1) for x in (tokens, targets)]
    alone = plain(*moved, POSITIONS, None)[:, : T - 30]
    np.testing.assert_allclose(packed[:, second], alone, atol=2e-5)


def loss_and_gradients(**fields):
    # Short, and with two layers, to compile fast: what is compared does not depend on either.
    config = with_fields(PLAIN, num_hidden_layers=2, num_key_value_heads=2, **fields)
    model = LanguageModel(resolve_model(config), V)
    rotary = jax.tree.map(lambda leaf: leaf[:2], by_layer(8))

    def mean(params, *args):
        return model.nll(params, *args).mean()

    inputs = [x[:, :20] for x in (*text(), POSITIONS, SEGMENTS)]
    return jax.jit(jax.value_and_grad(mean))(loud_params(model), *inputs, rotary)


@pytest.fixture(scope="module")
def unrolled():
    return loss_and_gradients()


@pytest.mark.parametrize(
    "fields",
    [
        {"layers": "scanned"},
        {"remat": "products"},
        {"remat": "attention"},
        {"remat": "layer"},
    ],
    ids=str,
)
def test_gradients_do_not_depend_on_how_layers_run(fields, unrolled):
    loss, gradients = loss_and_gradients(**fields)
    assert loss == pytest.approx(float(unrolled[0]), abs=1e-6)
    for (path, found), wanted in zip(
        jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(unrolled[1]), strict=True
    ):
        name = jax.tree_util.keystr(path)
        assert np.max(np.abs(wanted)) > 1e-3, f"{name}: the gradient is too small to compare"
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=1e-4, err_msg=name)


def test_bfloat16_is_close_to_float32(plain):
    # At far positions, where angles computed in bfloat16 would be entirely wrong.
    positions = POSITIONS + 100_000
    full = plain(*text(), positions, None)
    half = nll_of(with_fields(PLAIN, dtype="bfloat16"), Rotary.shared(frequencies(8)), positions)
    error = np.abs(half - full)
    assert 1e-4 < error.mean() < 0.03
    assert error.max() < 0.3
