"""Token by token, a model says what it says of whole windows.

Shapes: B texts, T tokens.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.generation.decoding import CachedDecoder
from rope_jax.kernels.loading import load_kernels
from rope_jax.model.decoder import DecoderInputs
from rope_jax.rope import STRATEGIES, Rotary, RotaryGeometry, RotaryLayers
from tests.checkpoints.folders import golden_case, loaded, write_case
from tests.compiled import needs_kernels
from tests.model import test_decoder as decoders
from tests.model import test_positions as positions
from tests.model.reference import FAMILIES, loud_params
from tests.rope.test_strategies import scaling

# Prompts of two lengths, over the end of the first chunk of 16 tokens and before it.
PROMPTS = (21, 9)
# Logits are up to 12; both ways round them to 1e-6 of that, and three layers multiply it.
ROUNDING = 1e-4


@functools.cache
def tokens_of(vocabulary, length):
    """Return the texts [B, T + 1]."""
    rng = np.random.default_rng(1)
    return rng.integers(0, vocabulary, (len(PROMPTS), length + 1)).astype(np.int32)


def nll_of_steps(decoder, rotary, tokens):
    """Return what a decoder says of each text's tokens after its prompt, of equally many."""
    steps = tokens.shape[1] - max(PROMPTS)
    prompts = [row[:size] for row, size in zip(tokens, PROMPTS, strict=True)]
    rest = [row[size:][:steps] for row, size in zip(tokens, PROMPTS, strict=True)]
    targets, found = np.stack(rest), []

    def read_on(logits, step):
        nll = -jax.nn.log_softmax(logits)[jnp.arange(len(targets)), targets[:, step]]
        found.append(nll)
        return jnp.asarray(targets[:, step])

    for _ in decoder.continue_texts(prompts, rotary, read_on, steps):
        pass
    return np.stack(found, axis=1)


def nll_of_whole(model, params, rotary, tokens):
    """Return the same from whole windows."""
    length = tokens.shape[1] - 1
    index = np.arange(length, dtype=np.int32)[None]
    windows = DecoderInputs(tokens[:, :-1], tokens[:, 1:], index, None, rotary)
    nll = np.asarray(jax.jit(model.nll)(params, windows))
    steps = tokens.shape[1] - max(PROMPTS)
    return np.stack([row[size - 1 :][:steps] for row, size in zip(nll, PROMPTS, strict=True)])


def decoder_of(model, params):
    decoder = CachedDecoder(model, jax.device_put(params), donate=True)
    decoder.chunk = 16
    return decoder


def assert_same(model, params, rotary, tokens, decoder=None):
    expected = nll_of_whole(model, params, rotary, tokens)
    found = nll_of_steps(decoder or decoder_of(model, params), rotary, tokens)
    assert expected.std() > 0.1
    np.testing.assert_allclose(found, expected, atol=ROUNDING)


KERNEL = pytest.param("cpu", marks=[needs_kernels, pytest.mark.slow])
# those that read no caches leave them to `xla`
OTHERS = [KERNEL, pytest.param("blockwise", marks=pytest.mark.slow)]


@pytest.mark.parametrize("attention", ["xla", *OTHERS])
@positions.every_method
def test_every_method_reads_on_as_in_whole_windows(method, attention):
    model, params = positions.model_and_params(method, attention)
    index = np.arange(positions.LENGTH, dtype=np.int32)[None]
    rotary = positions.rotary_at(method, model, index)
    assert_same(model, params, rotary, tokens_of(positions.VOCABULARY, positions.LENGTH))


@pytest.mark.parametrize("attention", ["xla", KERNEL])
@pytest.mark.parametrize("name", [*FAMILIES, "full"])
def test_every_family_reads_on_as_in_whole_windows(name, attention):
    model = decoders.made(name, attention=attention)
    tokens = tokens_of(decoders.V, decoders.T)
    assert_same(model, loud_params(model), decoders.by_layer(), tokens)


@functools.cache
def plain():
    attention = "xla" if load_kernels() is None else "cpu"
    model = decoders.made("plain", attention=attention)
    return model, loud_params(model), decoder_of(model, loud_params(model))


def test_layers_that_share_keys_and_values_read_on_as_in_whole_windows(tmp_path):
    case = golden_case("gemma4_text", "layer inputs and shared keys")
    config, params = loaded(write_case(tmp_path, case))
    model = language_model(resolve_run(config), 64)
    assert len(model.empty_caches(1, 16, 1)) == 3 < model.spec.num_hidden_layers
    index = np.arange(40, dtype=np.int32)[None]
    rotary = config.rotary_layers.rotary(config.rope.scaling, index)
    assert_same(model, params, rotary, tokens_of(64, 40))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_scaling_reads_on_as_in_whole_windows(name):
    model, params, decoder = plain()
    index = np.arange(decoders.T, dtype=np.int32)[None]
    example = scaling(name, 2.0, pairs=4, query_scale={"type": "power", "s": 1.5})
    layers = RotaryLayers(RotaryGeometry(8, 1e4, 16))
    rotary: Rotary = layers.rotary(example, index, decoders.T)
    assert_same(model, params, rotary, tokens_of(decoders.V, decoders.T), decoder)


def test_a_rotary_of_fewer_tokens_is_refused():
    *_, decoder = plain()
    layers = RotaryLayers(RotaryGeometry(8, 1e4, 16))
    short = layers.rotary(scaling("none"), np.arange(30, dtype=np.int32)[None], 30)
    with pytest.raises(ValueError, match="rotary: is for 30 tokens, and 31 are read"):
        nll_of_steps(decoder, short, tokens_of(decoders.V, 31))


def test_a_cache_of_latent_attention_keeps_latents():
    model = decoders.made("deepseek")
    one, *_ = model.empty_caches(batch=1, capacity=10, bands=1)
    own = model.spec.self_attention
    numbers = sum(leaf.size for leaf in jax.tree.leaves(one))
    assert numbers == 10 * (own.qk_rope_head_dim + own.kv_lora_rank)
