"""The memory that is expected of a forward pass, against what XLA allocates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.model import ModelConfig
from rope_jax.model.cost import forward_bytes
from rope_jax.model.decoder import LanguageModel
from rope_jax.rope import Frequencies, Rotary

pytestmark = pytest.mark.usefixtures("compiled_quickly")

WIDE = {"hidden_size": 64, "intermediate_size": 512, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("attention", "fields", "vocabulary", "length"),
    [
        ("xla", {}, 257, 4096),
        ("blockwise", {}, 257, 16384),
        ("blockwise", WIDE, 5000, 4096),
    ],
)
def test_the_estimate_is_about_what_xla_allocates(attention, fields, vocabulary, length):
    config = ModelConfig(attention=attention, **fields)
    model = LanguageModel(config, vocabulary)
    params = jax.eval_shape(lambda: model.init(0))
    rotary = Rotary.shared(Frequencies.from_float64(np.ones(config.heads_width // 2)))
    tokens = jax.ShapeDtypeStruct((1, length), np.int32)

    def nll(params, tokens, rotary):
        return model.nll(params, tokens, tokens, jnp.arange(length)[None], None, rotary)

    compiled = jax.jit(nll).lower(params, tokens, rotary).compile()
    allocated = compiled.memory_analysis().temp_size_in_bytes
    assert 0.6 < forward_bytes(config, vocabulary, length, length) / allocated < 1.7


def test_scoring_less_takes_no_more():
    config = ModelConfig()
    whole, few = (forward_bytes(config, 100_000, 1024, scored) for scored in (1024, 16))
    assert few < whole


def test_blocks_are_linear_in_the_length():
    config = ModelConfig(attention="blockwise")
    # the demo's model: at 65,536 tokens well within 2 GiB
    assert forward_bytes(config, 257, 65_536, 65_536) < 2**30
    ratio = forward_bytes(config, 257, 65_536, 32) / forward_bytes(config, 257, 32_768, 32)
    assert 1.8 < ratio <= 2
