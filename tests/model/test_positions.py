"""The decoder under every position encoding and map: packing, backends, layers, causality.

Shapes: B batch, T length.
"""

import functools

import jax
import numpy as np
import pytest

from rope_jax.attention import BACKENDS
from rope_jax.attention.blockwise import banded_blockwise
from rope_jax.config.model import ModelConfig
from rope_jax.model.decoder import LanguageModel
from rope_jax.model.resolve import resolve_model
from rope_jax.positions.encodings import ENCODINGS
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import MAPS
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling

pytestmark = pytest.mark.usefixtures("compiled_quickly")

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
    "borders": [5, 9],
    "near_inv_freq": RNG.uniform(0, 1, (1, 2, 2)).tolist(),
    "attention_factor": RNG.uniform(0.8, 1.2, (1, 2)).tolist(),
    "far_inv_freq": RNG.uniform(-0.1, 0.5, (2, 1, 2, 2)).tolist(),
    "far_phase": RNG.uniform(-3, 3, (2, 1, 4, 2)).tolist(),
    "far_amplitude": RNG.uniform(0.5, 2, (2, 1, 4, 2)).tolist(),
    "scale_s": RNG.uniform(0.8, 1.2, (1, 4)).tolist(),
    "scale_p": RNG.uniform(0, 1, (1, 4)).tolist(),
    "bias": RNG.uniform(-1, 1, (1, 4, 3)).tolist(),
}
# logits between −0.5 and 0.5, those that a fitted map adds a bias to included
CAPPED = ("capped", "capped map leaky_rerope", "capped map fitted")
METHODS = [*ENCODINGS, *(f"map {name}" for name in MAPS), "linear", *CAPPED]
OF_METHOD = {name: "xla" for name in METHODS} | {"linear": "linear"}
# One of each kind, for `make test`: a bias, values, a doubled width, bands by distance, by place,
# a soft cap.
SAMPLE = ("alibi", "shaw", "pope", "map leaky_rerope", "map dual_chunk", "linear", CAPPED[-1])


def marked(methods):
    """Mark as slow what only the whole suite tries."""
    slow = pytest.mark.slow
    return [pytest.param(m, marks=() if m in SAMPLE else slow) for m in methods]


@functools.cache
def model_and_params(method, attention, layers=1, order="unrolled"):
    encoding = ENCODINGS.get(method, ENCODINGS["rope"])().fitted(LENGTH)
    config = ModelConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,  # so that attention is far from uniform
        attention=attention,
        attention_softcap=0.5 if method in CAPPED else None,
        layers=order,
        position=encoding,
    )
    model = LanguageModel(resolve_model(config), VOCABULARY, encoding=encoding)
    return model, model.init(0)


def rotary_at(method, model, positions):
    """Return the frequencies, and a map's bands at positions [B, T]."""
    dim = model.encoding.rotary_dim(model.config.heads_width)
    layers = RotaryLayers(RotaryGeometry(dim, 50.0, WINDOW))
    scaling = parse_scaling("none")
    rotary = layers.rotary(scaling, positions)
    _, _, name = method.rpartition("map ")
    if name not in MAPS:
        return rotary
    map_ = MAPS[name](**MAP_SETTINGS[name])
    return with_map(rotary, map_, layers, positions, window=WINDOW, seq_len=LENGTH)


def nll(method, tokens, *, attention=None, lengths=None, last=None, params=None):
    """Return the NLL of tokens [B, T + 1]; lengths: of the documents in every row."""
    model, own = model_and_params(method, attention or OF_METHOD[method])
    lengths = lengths or (tokens.shape[1] - 1,)
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])[None]
    ids = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[None]
    ids = None if len(lengths) == 1 else np.broadcast_to(ids, (len(tokens), ids.shape[1]))
    return jax.jit(model.nll, static_argnums=6)(
        own if params is None else params,
        *(tokens[:, :-1], tokens[:, 1:], positions, ids),
        rotary_at(method, model, positions),
        last,
    )


def random_tokens(length=LENGTH):
    return np.random.default_rng(1).integers(0, VOCABULARY, (2, length + 1)).astype(np.int32)


@pytest.mark.parametrize("method", marked(METHODS))
def test_packed_documents_are_read_like_separate_ones(method):
    tokens = random_tokens()
    packed = nll(method, tokens, lengths=DOCUMENTS)
    first = nll(method, tokens[:, : DOCUMENTS[0] + 1])
    second = nll(method, tokens[:, DOCUMENTS[0] :])
    np.testing.assert_allclose(packed, np.concatenate([first, second], axis=1), atol=2e-5)


@pytest.mark.parametrize("method", METHODS)
def test_later_tokens_change_nothing_and_the_last_targets_are_the_same(method):
    tokens = random_tokens()
    changed = tokens.copy()
    changed[:, 21:] = (tokens[:, 21:] + 1) % VOCABULARY
    whole = nll(method, tokens)
    np.testing.assert_array_equal(nll(method, changed)[:, :20], whole[:, :20])
    np.testing.assert_allclose(nll(method, tokens, last=7), whole[:, -7:], atol=2e-5)


@pytest.mark.parametrize("method", marked(name for name in METHODS if name != "linear"))
def test_blockwise_gives_the_same_losses_and_gradients(method, monkeypatch):
    monkeypatch.setattr(
        BACKENDS["blockwise"], "attend_bands", functools.partial(banded_blockwise, block=8)
    )
    tokens = random_tokens()
    _, params = model_and_params(method, "xla")

    def loss(params, attention):
        return nll(method, tokens, attention=attention, lengths=DOCUMENTS, params=params).mean()

    (value, gradient), (other, other_gradient) = (
        jax.value_and_grad(loss)(params, attention) for attention in ("xla", "blockwise")
    )
    np.testing.assert_allclose(value, other, atol=2e-6)
    for path, leaf in jax.tree.leaves_with_path(gradient):
        theirs = functools.reduce(lambda tree, key: tree[key.key], path, other_gradient)
        np.testing.assert_allclose(leaf, theirs, atol=2e-5, err_msg=str(path))
        assert np.isfinite(leaf).all()
    for name, leaf in gradient.get("position", {}).items():
        assert np.abs(leaf).max() > 0, name


# one with parameters per layer, one whose layers share them, one with bands
@pytest.mark.parametrize("method", ["shaw", "t5", "map dual_chunk"])
def test_scanned_layers_give_the_same_losses(method):
    tokens = random_tokens()
    positions = np.arange(LENGTH, dtype=np.int32)[None]
    found = []
    for order in ("unrolled", "scanned"):
        model, params = model_and_params(method, "xla", 3, order)
        rotary = rotary_at(method, model, positions)
        run = jax.jit(model.nll)
        found.append(run(params, tokens[:, :-1], tokens[:, 1:], positions, None, rotary))
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_map_changes_the_losses_beyond_its_window_only():
    tokens = random_tokens()
    plain, mapped = nll("rope", tokens), nll("map rerope", tokens)
    np.testing.assert_allclose(mapped[:, :5], plain[:, :5], atol=1e-6)
    assert np.abs(mapped - plain)[:, 6:].max() > 1e-3


def test_a_learned_table_gives_no_number_past_its_end():
    tokens = random_tokens(LENGTH + 2)
    assert np.isfinite(nll("learned", tokens[:, : LENGTH + 1])).all()
    # Nor before it, in a window that goes on past it: hidden values weigh 0, and 0 · NaN is NaN.
    assert np.isnan(nll("learned", tokens)).all()
