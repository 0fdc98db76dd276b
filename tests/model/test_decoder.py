"""The decoder against a second one in numpy and float64, and against itself in other forms.

Shapes: B batch, T length, D model, N heads, K key-value heads, G = N/K, H head dim, L layers,
d rotary dimension.
"""

import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax import attention
from rope_jax.config.model import ModelConfig
from rope_jax.model.decoder import LanguageModel
from rope_jax.rope import Frequencies, Rotary, RotaryGeometry, parse_scaling

pytestmark = pytest.mark.usefixtures("compiled_quickly")

V, B, T, L = 61, 3, 70, 3  # L = B: mixing the two up must show; T is past one attention chunk

PLAIN = ModelConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=L, num_attention_heads=4
)
# Grouped queries, heads wider than D/N, norms on queries and keys, an output matrix of its own.
FULL = ModelConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=L,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=12,
    qk_norm=True,
    tie_word_embeddings=False,
    rms_norm_eps=1e-2,
)


def with_fields(config, **fields):
    return ModelConfig(**config.model_dump() | fields)


# The reference


def rms_norm(x, scale, config):
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + config.rms_norm_eps) * scale


def turn(x, inv_freq, m, positions, layout):
    """x [B, T, heads, H], inv_freq [B, d/2], m [B], positions [B, T]."""
    angles = positions[:, :, None] * inv_freq[:, None]
    d = 2 * inv_freq.shape[-1]
    first = slice(0, d // 2) if layout == "half" else slice(0, d, 2)
    second = slice(d // 2, d) if layout == "half" else slice(1, d, 2)
    by = m[:, None, None] * np.exp(1j * angles)
    turned = (x[..., first] + 1j * x[..., second]) * by[:, :, None]  # pairs as complex numbers
    out = x.copy()
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def reference_nll(
    config, layout, params, tokens, targets, positions, segment_ids, rotary, windows=(None,)
):
    """Llama's forward pass, one layer and one head after the other, in float64."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    inv_freq, remainder, m = (np.float64(leaf) for leaf in rotary.frequencies)
    count, batch, length = config.num_hidden_layers, *tokens.shape
    inv_freq = np.broadcast_to(inv_freq + remainder, (count, batch, inv_freq.shape[-1]))
    m = np.broadcast_to(m, (count, batch))
    scale = np.broadcast_to(np.float64(rotary.query_scale), (count, batch, length))
    positions = np.broadcast_to(positions, tokens.shape)
    visible = np.tri(length, dtype=bool)[None]
    if segment_ids is not None:
        visible = visible & (segment_ids[:, :, None] == segment_ids[:, None])
    heads, width = config.num_attention_heads, config.heads_width
    kv_heads = config.num_key_value_heads or heads

    x = params["embed_tokens"]["embedding"][tokens]
    for number in range(count):
        layer = jax.tree.map(lambda leaf, i=number: leaf[i], params["layers"])
        h = rms_norm(x, layer["input_layernorm"]["scale"], config)
        weights = layer["self_attn"]
        q, k, v = (
            (h @ weights[f"{name}_proj"]["kernel"]).reshape(batch, length, -1, width)
            for name in "qkv"
        )
        assert (q.shape[2], k.shape[2], v.shape[2]) == (heads, kv_heads, kv_heads)
        if config.qk_norm:
            q = rms_norm(q, weights["q_norm"]["scale"], config)
            k = rms_norm(k, weights["k_norm"]["scale"], config)
        q, k = (turn(y, inv_freq[number], m[number], positions, layout) for y in (q, k))
        q = q * scale[number][:, :, None, None]
        mixed = np.empty_like(q)
        for head in range(heads):
            of_group = head // (heads // kv_heads)
            logits = q[:, :, head] @ k[:, :, of_group].swapaxes(1, 2) / np.sqrt(width)
            window = windows[number % len(windows)] or length
            near = np.subtract.outer(np.arange(length), np.arange(length)) < window
            logits = np.where(visible & near, logits, -np.inf)
            p = np.exp(logits - logits.max(-1, keepdims=True))
            mixed[:, :, head] = p / p.sum(-1, keepdims=True) @ v[:, :, of_group]
        x = x + mixed.reshape(batch, length, -1) @ weights["o_proj"]["kernel"]
        h = rms_norm(x, layer["post_attention_layernorm"]["scale"], config)
        gate = h @ layer["mlp"]["gate_proj"]["kernel"]
        up = h @ layer["mlp"]["up_proj"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp"]["down_proj"]["kernel"]
    x = rms_norm(x, params["norm"]["scale"], config)
    tied = config.tie_word_embeddings
    logits = x @ (params["embed_tokens"]["embedding"].T if tied else params["lm_head"]["kernel"])
    log_sum = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return log_sum - np.take_along_axis(logits, targets[:, :, None], -1)[:, :, 0]


# What goes in


def loud_params(model):
    """Parameters under which every part matters: fresh ones are nearly a uniform guess."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        if path[-1].key == "scale":
            return rng.uniform(0.5, 1.5, leaf.shape).astype(np.float32)
        fan_in = leaf.shape[-1] if path[-1].key == "embedding" else leaf.shape[-2]
        return (rng.standard_normal(leaf.shape) * 1.5 / np.sqrt(fan_in)).astype(np.float32)

    shapes = jax.eval_shape(lambda: model.init(0))
    return jax.tree_util.tree_map_with_path(draw, shapes)


def text(seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, V, (B, T + 1)).astype(np.int32)
    return tokens[:, :-1], tokens[:, 1:]


SEGMENTS = np.cumsum(np.random.default_rng(1).random((B, T)) < 0.06, axis=1).astype(np.int32)
POSITIONS = np.arange(T, dtype=np.int32)[None]
# Jumps forward, as in training on skipped positions, and back: never a reason to see less or more.
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
    """Other frequencies, and another m, in every layer; none at all (NoPE) in the second."""
    layers = [
        frequencies(width, type="yarn", factor=4.0),
        Frequencies.from_float64(np.zeros(width // 2)),
        frequencies(width, type="pi", factor=2.0),
    ]
    leaves = (np.stack(leaf)[:, None] for leaf in zip(*layers, strict=True))
    return Rotary(Frequencies(*leaves), np.ones((1, 1, 1), np.float32))


def by_row_with_query_scale(width):
    """Other frequencies in every row; queries scaled by layer, row and token."""
    rows = [frequencies(width, type="ntk", factor=float(s)) for s in (1, 2, 8)]
    leaves = (np.stack(leaf)[None] for leaf in zip(*rows, strict=True))
    scale = np.random.default_rng(2).uniform(0.5, 2, (L, B, T)).astype(np.float32)
    return Rotary(Frequencies(*leaves), scale)


def nll_of(config, rotary, positions=POSITIONS, segment_ids=None, layout="half"):
    model = LanguageModel(config, V, layout)
    nll = jax.jit(model.nll)(loud_params(model), *text(), positions, segment_ids, rotary)
    assert nll.dtype == jnp.float32
    return np.asarray(nll)


def assert_agrees(found, config, rotary, positions=POSITIONS, segment_ids=None, layout="half"):
    params = loud_params(LanguageModel(config, V, layout))
    wanted = reference_nll(config, layout, params, *text(), positions, segment_ids, rotary)
    assert wanted.std() > 0.5  # far from a uniform guess, where all would agree
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.fixture(scope="module")
def plain():
    """A jitted nll(tokens, targets, positions, segment_ids) of PLAIN."""
    model = LanguageModel(PLAIN, V)
    params, rotary = loud_params(model), Rotary.shared(frequencies(8))
    jitted = jax.jit(model.nll)

    def nll(tokens, targets, positions, segment_ids):
        positions = np.broadcast_to(positions, (B, T))  # one compilation for all
        return np.asarray(jitted(params, tokens, targets, positions, segment_ids, rotary))

    return nll


# Against the reference


def test_plain(plain):
    assert_agrees(plain(*text(), POSITIONS, None), PLAIN, Rotary.shared(frequencies(8)))


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_full_with_frequencies_of_its_own_in_every_layer(layers):
    # Rotating 8 of 12 dimensions; one layer without rotation; documents kept apart.
    config, inputs = with_fields(FULL, layers=layers), (by_layer(8), POSITIONS, SEGMENTS)
    assert_agrees(nll_of(config, *inputs), config, *inputs)


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_frequencies_by_row_query_scale_and_jumping_positions(layers):
    # Positions jump both ways: the mask goes by place in the window.
    config = with_fields(PLAIN, layers=layers, num_key_value_heads=1)
    inputs = by_row_with_query_scale(8), JUMPS, None, "interleaved"
    assert_agrees(nll_of(config, *inputs), config, *inputs)


@pytest.mark.parametrize(
    ("layers", "windows"),
    [
        ("unrolled", (5, None)),
        ("scanned", (5, None)),  # one repeat of two layers, and one layer left over
        ("scanned", (5, None, 20)),
    ],
)
def test_sliding_windows_by_layer(layers, windows):
    config = with_fields(FULL, layers=layers)
    inputs = by_layer(8), POSITIONS, SEGMENTS
    model = LanguageModel(config, V, "half", windows)
    params = loud_params(model)
    rotary, positions, segments = inputs
    found = jax.jit(model.nll)(params, *text(), positions, segments, rotary)
    wanted = reference_nll(config, "half", params, *text(), positions, segments, rotary, windows)
    np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("layers", "windows", "attention"),
    [
        ("unrolled", (5, None), "xla"),
        ("scanned", (5, 20), "blockwise"),  # a repeat of two layers, and the last one by itself
        ("scanned", (5,), "xla"),
    ],
)
def test_the_last_targets_alone_are_those_of_all(layers, windows, attention):
    config = with_fields(FULL, layers=layers, attention=attention)
    rotary = by_layer(8)._replace(query_scale=by_row_with_query_scale(8).query_scale)
    model = LanguageModel(config, V, "half", windows)
    inputs = loud_params(model), *text(), JUMPS, SEGMENTS, rotary
    whole = jax.jit(model.nll)(*inputs)
    for last in (1, 7, T):
        found = jax.jit(functools.partial(model.nll, last=last))(*inputs)
        assert found.shape == (B, last)
        np.testing.assert_allclose(found, whole[:, -last:], atol=2e-6)
    # the last layer's feed-forward sees those rows alone
    program = str(jax.make_jaxpr(functools.partial(model.nll, last=7))(*inputs))
    assert f"f32[{B * 7},48]" in program


def test_layers_that_differ_have_the_same_gradients_scanned_and_recomputed():
    rotary, windows = by_layer(8), (5, None)
    found = []
    for fields in ({}, {"layers": "scanned", "remat": True}):
        model = LanguageModel(with_fields(FULL, **fields), V, "half", windows)

        def loss(params, model=model):
            return model.nll(params, *text(), POSITIONS, SEGMENTS, rotary).sum()

        found.append(jax.jit(jax.grad(loss))(loud_params(model)))
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)


# Against itself


def test_positions_count_by_difference_alone(plain):
    # Held in bfloat16, or turned in float32, 1,000,000 positions on would be another text.
    here = plain(*text(), POSITIONS, None)
    np.testing.assert_allclose(plain(*text(), POSITIONS + 1_000_000, None), here, atol=2e-5)
    assert np.max(np.abs(plain(*text(), 2 * POSITIONS, None) - here)) > 0.1


@pytest.mark.parametrize("positions", [POSITIONS, JUMPS], ids=["in order", "jumping"])
def test_later_tokens_change_nothing(plain, positions):
    (tokens, targets), (others, _) = text(), text(seed=1)
    mixed = np.where(np.arange(T) < 40, tokens, others)
    before, after = plain(tokens, targets, positions, None), plain(mixed, targets, positions, None)
    np.testing.assert_array_equal(before[:, :40], after[:, :40])
    assert np.all(before[:, 40:] != after[:, 40:])


def test_packed_documents_are_as_if_alone(plain):
    # Two documents in a row, with positions from 0 each, against each in a row of its own.
    tokens, targets = text()
    first, second = np.arange(T) < 30, np.arange(T) >= 30
    packed = plain(
        tokens,
        targets,
        (np.arange(T) - 30 * second)[None].astype(np.int32),
        np.tile(second, (B, 1)) * np.int32(1),
    )
    np.testing.assert_array_equal(
        packed[:, first], plain(tokens, targets, POSITIONS, None)[:, first]
    )
    moved = [np.roll(x, -30, axis=1) for x in (tokens, targets)]
    alone = plain(*moved, POSITIONS, None)[:, : T - 30]
    np.testing.assert_allclose(packed[:, second], alone, atol=2e-5)


def loss_and_gradients(**fields):
    # Short, and two layers: what is compared does not depend on it, and compiling does.
    config = with_fields(PLAIN, num_hidden_layers=2, num_key_value_heads=2, **fields)
    model = LanguageModel(config, V)
    rotary = jax.tree.map(lambda leaf: leaf[:2], by_layer(8))

    def mean(params, *args):
        return model.nll(params, *args).mean()

    inputs = [x[:, :20] for x in (*text(), POSITIONS, SEGMENTS)]
    return jax.jit(jax.value_and_grad(mean))(loud_params(model), *inputs, rotary)


@pytest.fixture(scope="module")
def unrolled():
    return loss_and_gradients()


@pytest.mark.parametrize("fields", [{"layers": "scanned"}, {"remat": True}], ids=str)
def test_gradients_do_not_depend_on_how_layers_run(fields, unrolled):
    loss, gradients = loss_and_gradients(**fields)
    assert loss == pytest.approx(float(unrolled[0]), abs=1e-6)
    for (path, found), wanted in zip(
        jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(unrolled[1]), strict=True
    ):
        name = jax.tree_util.keystr(path)
        assert np.max(np.abs(wanted)) > 1e-3, f"{name} gets no gradient to compare"
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=1e-4, err_msg=name)


def test_bfloat16_is_close_to_float32(plain):
    # Far positions: angles made in bfloat16 would be nowhere near.
    positions = POSITIONS + 100_000
    full = plain(*text(), positions, None)
    half = nll_of(with_fields(PLAIN, dtype="bfloat16"), Rotary.shared(frequencies(8)), positions)
    error = np.abs(half - full)
    assert 1e-4 < error.mean() < 0.03
    assert error.max() < 0.3


def test_fresh_parameters():
    params = LanguageModel(with_fields(FULL, initializer_range=0.05), V).init(3)
    params = jax.device_get(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        assert leaf.dtype == jnp.float32, name
        if path[-1].key == "scale":
            assert np.all(leaf == 1), name
        else:
            assert np.std(leaf) == pytest.approx(0.05, rel=0.06), name
            assert abs(np.mean(leaf)) < 0.005, name
    # Every layer is drawn on its own.
    kernels = params["layers"]["mlp"]["up_proj"]["kernel"]
    assert np.max(np.abs(np.corrcoef(kernels.reshape(L, -1)) - np.eye(L))) < 0.1


# Every field of the configuration changes something. What, by field:


def shapes(config):
    leaves = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(lambda: LanguageModel(config, V).init(0))
    )
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


@functools.cache
def gradient_program(config):
    """The program that differentiates a one-layer model's loss, before XLA."""
    model = LanguageModel(with_fields(config, num_hidden_layers=1), V)
    width = config.heads_width

    def loss(params):
        return model.nll(params, *text(), POSITIONS, None, Rotary.shared(frequencies(width))).sum()

    return str(jax.make_jaxpr(jax.grad(loss))(jax.eval_shape(lambda: model.init(0))))


KERNEL = "['layers']['{}']['{}']['kernel']"
# Field: its other value, and what the parameters' shapes then differ in.
SHAPE_CASES = {
    "hidden_size": (64, {"['norm']['scale']": (64,)}),
    "intermediate_size": (40, {KERNEL.format("mlp", "gate_proj"): (L, 32, 40)}),
    "num_hidden_layers": (5, {KERNEL.format("mlp", "gate_proj"): (5, 32, 48)}),
    "num_attention_heads": (8, {}),  # narrower ones: the same shapes, another program
    "num_key_value_heads": (2, {KERNEL.format("self_attn", "k_proj"): (L, 32, 16)}),
    "head_dim": (10, {KERNEL.format("self_attn", "q_proj"): (L, 32, 40)}),
    "tie_word_embeddings": (False, {"['lm_head']['kernel']": (32, V)}),
    "qk_norm": (True, {"['layers']['self_attn']['q_norm']['scale']": (L, 8)}),
}
# Field: its other value, and text that is then in the program and was not before.
PROGRAM_CASES = {
    "num_attention_heads": (8, f"f32[{B},{T},8,4]"),
    "rms_norm_eps": (0.125, "0.125:f32"),
    "dtype": ("bfloat16", "bf16["),
    "layers": ("scanned", "scan["),
    "remat": (True, "remat"),
}


def test_every_model_field_has_a_case():
    others = {"initializer_range", "attention"}  # test_fresh_parameters; the last one below
    assert set(SHAPE_CASES) | set(PROGRAM_CASES) | others == set(ModelConfig.model_fields)


@pytest.mark.parametrize("field", SHAPE_CASES)
def test_field_changes_the_parameters(field):
    value, differences = SHAPE_CASES[field]
    before, after = shapes(PLAIN), shapes(with_fields(PLAIN, **{field: value}))
    for name, shape in differences.items():
        assert before.get(name) != shape
        assert after[name] == shape


@pytest.mark.parametrize("field", PROGRAM_CASES)
def test_field_changes_the_program(field):
    value, sign = PROGRAM_CASES[field]
    assert sign not in gradient_program(PLAIN)
    assert sign in gradient_program(with_fields(PLAIN, **{field: value}))


def test_attention_is_taken_by_its_name(monkeypatch):
    choices = typing.get_args(ModelConfig.model_fields["attention"].annotation)
    assert set(choices) == set(attention.BACKENDS)
    called = []

    def recorded(q, k, v, segment_ids, sliding_window):
        called.append((q.shape, k.shape, v.shape, segment_ids.shape))
        return q

    monkeypatch.setitem(attention.BACKENDS, "recorded", recorded)
    model = LanguageModel(FULL.model_copy(update={"attention": "recorded"}), V)
    arguments = (*text(), POSITIONS, SEGMENTS, Rotary.shared(frequencies(12)))
    jax.eval_shape(model.nll, loud_params(model), *arguments)
    assert called == [((B, T, 6, 12), (B, T, 2, 12), (B, T, 2, 12), (B, T))] * L


def test_frequencies_of_another_number_of_layers_are_refused():
    model = LanguageModel(ModelConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=3), 5)
    shared = Rotary.shared(Frequencies.from_float64(np.ones(1)))
    two = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), shared)
    tokens = np.zeros((1, 4), np.int32)
    with pytest.raises(ValueError, match="its first axis must be 1 or the 3 layers"):
        jax.eval_shape(
            lambda params: model.nll(params, tokens, tokens, tokens, None, two),
            jax.eval_shape(lambda: model.init(0)),
        )
