"""The decoder under every position encoding and map: packing, backends, layers, causality.

Shapes: B batch, T length.
"""

import functools

import jax
import numpy as np
import pytest

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.blockwise import Blockwise
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import resolve_model
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.positions.encodings import ENCODINGS
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import MAPS
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling
from tests.compiled import needs_kernels

VOCABULARY, LENGTH, WINDOW = 23, 30, 8
# the second document begins inside a block, and is longer than the first
DOCUMENTS = (11, 19)
MAP_SETTINGS = {
    "rerope": {"window": 5},
    "leaky_rerope": {"window": 5, "k": 8.0},
    "self_extend": {"window": 4, "group": 4},
    "dual_chunk": {"chunk": 6, "local": 2},
    "streaming": {"sinks": 2, "recent": 4},
    "lm_infinite": {"sinks": 2, "recent": 6},
    "string": {"shift": 6, "local": 2},
    "far_frequencies": {"window": 5, "far": parse_scaling({"type": "pi", "factor": 4.0})},
}
# 2 pairs, 4 heads and 2 key-value heads; every number differs, so that none can stand for another
RNG = np.random.default_rng(5)
MAP_SETTINGS["fitted"] = {
    "train_length": WINDOW,
    "borders": [5],
    "near_inv_freq": RNG.uniform(0, 1, (1, 2, 2)).tolist(),
    "attention_factor": RNG.uniform(0.8, 1.2, (1, 2)).tolist(),
    "far_inv_freq": RNG.uniform(-0.1, 0.5, (1, 1, 2, 2)).tolist(),
    "far_phase": RNG.uniform(-3, 3, (1, 1, 4, 2)).tolist(),
    "far_amplitude": RNG.uniform(0.5, 2, (1, 1, 4, 2)).tolist(),
    "scale_s": RNG.uniform(0.8, 1.2, (1, 4)).tolist(),
    "scale_p": RNG.uniform(0, 1, (1, 4)).tolist(),
    "bias": RNG.uniform(-1, 1, (1, 4, 3)).tolist(),
}
# logits between −0.5 and 0.5, those that a fitted map adds a bias to included
CAPPED = ("capped", "capped map leaky_rerope", "capped map fitted")
METHODS = [*ENCODINGS, *(f"map {name}" for name in MAPS), "linear", *CAPPED]
# One of each kind, for `make test`: encodings with scores of their own, or parameters and a doubled
# width; bands by place, features, bands by distance and head with a bias and a soft cap.
SAMPLE = ("shaw", "fire", "xpos", "pope", "map streaming", "linear", CAPPED[-1])


slow = pytest.mark.slow
every_method = pytest.mark.parametrize(
    "method", [pytest.param(m, marks=() if m in SAMPLE else slow) for m in METHODS]
)


@functools.cache
def model_and_params(method, attention, layers=1, order="unrolled"):
    """Return a model, and parameters with which attention is far from uniform."""
    encoding = ENCODINGS.get(method, ENCODINGS["rope"])().resolved(LENGTH)
    config = ModelConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention="linear" if method == "linear" else attention,
        attention_softcap=0.5 if method in CAPPED else None,
        layers=order,
        position=encoding,
    )
    model = LanguageModel(resolve_model(config).spec(encoding=encoding), VOCABULARY)
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        values = 1 if path[-1].key == "scale" else rng.normal(0, 0.3, leaf.shape)
        return np.full(leaf.shape, values, np.float32)

    shapes = model.abstract_params()
    params = jax.tree.map_with_path(draw, shapes)
    if "position" in params:
        initial = jax.jit(lambda key: encoding.initial(config.spec().sizes, key))
        params["position"] = jax.device_get(initial(jax.random.key(0)))
    return model, params


def rotary_at(method, model, positions):
    """Return the frequencies, and a map's bands at positions [B, T]."""
    dim = model.encoding.rotary_dim(model.spec.heads_width)
    layers = RotaryLayers(RotaryGeometry(dim, 50.0, WINDOW))
    rotary = layers.rotary(parse_scaling("none"), positions)
    _, _, name = method.rpartition("map ")
    if name not in MAPS:
        return rotary
    map_ = MAPS[name](**MAP_SETTINGS[name])
    return with_map(rotary, map_, layers, positions, window=WINDOW, seq_len=LENGTH)


def nll_of(method, model, params, rows, last=None):
    tokens, positions, ids = rows
    rotary = rotary_at(method, model, positions)
    windows = DecoderInputs(tokens[:, :-1], tokens[:, 1:], positions, ids, rotary)
    return model.nll(params, windows, last)


def inputs():
    """Return four pairs of rows: tokens [8, T + 1], positions and documents [8, T].

    Two whole windows; the same with other tokens after the 21st; the same as two documents each;
    and the second documents at the start of a window.
    """
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCABULARY, (2, LENGTH + 1)).astype(np.int32)
    changed = tokens.copy()
    changed[:, 21:] = (tokens[:, 21:] + 1) % VOCABULARY
    moved = np.roll(tokens, -DOCUMENTS[0], axis=1)
    index = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (2, LENGTH))
    ids = (index >= DOCUMENTS[0]).astype(np.int32)
    return (
        np.concatenate([tokens, changed, tokens, moved]),
        np.concatenate([index, index, index - DOCUMENTS[0] * ids, index]),
        np.concatenate([0 * ids, 0 * ids, ids, 0 * ids]),
    )


@functools.cache
def nll_and_gradient(method, attention):
    """Return the NLL of `inputs`, and the gradient of its mean over the packed rows."""
    model, params = model_and_params(method, attention)

    def loss(params, rows):
        nll = nll_of(method, model, params, rows)
        return nll[4:6].mean(), nll

    (_, nll), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, inputs())
    return np.asarray(nll), gradient


@every_method
def test_later_tokens_change_nothing_and_packed_documents_are_read_like_separate_ones(method):
    whole, changed, packed, second = np.split(nll_and_gradient(method, "xla")[0], 4)
    np.testing.assert_array_equal(changed[:, :20], whole[:, :20])
    assert np.all(changed[:, 20:] != whole[:, 20:])
    border = DOCUMENTS[0]
    np.testing.assert_allclose(packed[:, :border], whole[:, :border], atol=2e-5)
    np.testing.assert_allclose(packed[:, border:], second[:, : DOCUMENTS[1]], atol=2e-5)


@every_method
def test_blockwise_gives_the_same_losses_and_gradients(method, monkeypatch):
    if method == "linear":
        pytest.skip("it has no softmax")
    monkeypatch.setitem(BACKENDS, "blockwise", Blockwise(block=7))
    check_against_dense(method, "blockwise")


@needs_kernels
@pytest.mark.parametrize("method", ["t5", "kerple", "map fitted"])
def test_the_kernel_for_cpus_adds_biases_by_distance(method, monkeypatch):
    monkeypatch.delattr("rope_jax.attention.cpu.Blockwise")  # it is not what computes them
    check_against_dense(method, "cpu")


def check_against_dense(method, attention):
    (nll, gradient), (other_nll, others) = (
        nll_and_gradient(method, attention) for attention in ("xla", attention)
    )
    np.testing.assert_allclose(nll, other_nll, atol=2e-5)
    for (path, leaf), theirs in zip(
        jax.tree.leaves_with_path(gradient), jax.tree.leaves(others), strict=True
    ):
        np.testing.assert_allclose(leaf, theirs, atol=2e-5, err_msg=str(path))
        assert np.isfinite(leaf).all()
    for name, leaf in gradient.get("position", {}).items():
        assert np.abs(leaf).max() > 0, name


@pytest.mark.parametrize(
    "method", ["map streaming", *(pytest.param(m, marks=slow) for m in ("shaw", CAPPED[-1]))]
)
def test_the_last_targets_are_those_of_all(method):
    model, params = model_and_params(method, "xla")
    found = jax.jit(lambda *given: nll_of(method, model, *given, last=7))(params, inputs())
    np.testing.assert_allclose(found, nll_and_gradient(method, "xla")[0][:, -7:], atol=2e-5)


# one with parameters per layer, and one with bands
@pytest.mark.parametrize("method", ["shaw", pytest.param("map dual_chunk", marks=slow)])
def test_scanned_layers_give_the_same_losses(method):
    found = []
    for order in ("unrolled", "scanned"):
        model, params = model_and_params(method, "xla", 2, order)
        run = jax.jit(functools.partial(nll_of, method, model))
        found.append(run(params, inputs()))
    np.testing.assert_allclose(*found, atol=1e-5)


def whole_nll(method, first=(0, 0)):
    """Return the NLL of two windows of one document each, from these positions on."""
    model, params = model_and_params(method, "xla")
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (2, LENGTH + 1)).astype(np.int32)
    rows = tokens, np.int32(first)[:, None] + np.arange(LENGTH, dtype=np.int32)[None], None
    return np.asarray(jax.jit(functools.partial(nll_of, method, model))(params, rows))


def test_a_map_changes_the_losses_beyond_its_window_only():
    plain, mapped = whole_nll("rope"), nll_and_gradient("map streaming", "xla")[0][:2]
    np.testing.assert_allclose(mapped[:, :7], plain[:, :7], atol=2e-5)  # two sinks, four recent
    assert np.abs(mapped - plain)[:, 7:].max() > 1e-3


def test_a_learned_table_gives_no_number_past_its_end():
    inside, outside = whole_nll("learned", first=(0, 2))
    assert np.isfinite(inside).all()
    # Nor before it, in a window that goes on past it: hidden values weigh 0, and 0 · NaN is NaN.
    assert np.isnan(outside).all()


@pytest.mark.parametrize("method", ["learned", "shaw"])
def test_parameters_of_an_encoding_are_drawn_apart_from_the_embedding(method):
    params = model_and_params(method, "xla")[0].init(0)
    embedding = np.asarray(params["embed_tokens"]["embedding"]).reshape(-1)
    for drawn in jax.tree.leaves(params["position"]):
        numbers = np.asarray(drawn).reshape(-1)[: embedding.size]
        assert abs(np.corrcoef(numbers, embedding[: numbers.size])[0, 1]) < 0.5
