"""The memory plan: its figures, what it prints and refuses, and what XLA then allocates."""

import copy
import re
from dataclasses import replace

import jax
import numpy as np
import pytest

from rope_jax.config.devices import MeshConfig
from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import resolve_model
from rope_jax.devices.mesh import Placement
from rope_jax.devices.window_memory import LARGEST_OVERESTIMATE, MemoryEstimate
from rope_jax.errors import UserError
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.rope import Frequencies, Rotary

MIB, GIB = 2**20, 2**30
IN_BFLOAT16 = {"dtype": "bfloat16", "param_dtype": "bfloat16"}
LLAMA_1B = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8}  # fmt: skip
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8,
            "tie_word_embeddings": False}  # fmt: skip


def plan(fields: dict, vocab_size: int = 128_256, fsdp: int = 1) -> MemoryEstimate:
    config = ModelConfig(**{"attention": "blockwise", "layers": "scanned"} | fields)
    model = LanguageModel(resolve_model(config).spec(), vocab_size)
    placement = Placement(MeshConfig(fsdp=fsdp))
    placement = placement.splitting(model.shardings)
    like = placement.shard_state(model.abstract_params())
    return MemoryEstimate(config.spec(), vocab_size, like, placement)


@pytest.fixture
def accelerator(monkeypatch):
    monkeypatch.setattr("rope_jax.devices.window_memory.is_host_memory", lambda *_: False)


# By hand, in MiB at 32,768 tokens, of which a number of bfloat16 each takes 1/16 MiB:
# the residual stream twice and gate, up and their product, 2·D + 3·F, among which are the keys and
# values; 2^26 logits, in float32, which are more than 3 blocks of 512 × 512 scores for each head.
@pytest.mark.parametrize(
    ("fields", "parameters", "activations"),
    [
        (LLAMA_1B, 1_235_814_400, (4096 + 24_576) / 16),
        (LLAMA_8B, 8_030_261_248, (8192 + 43_008) / 16),
    ],
)
@pytest.mark.usefixtures("accelerator")
def test_llamas_in_bfloat16_fit_on_80_gib(fields, parameters, activations):
    found = plan(fields | IN_BFLOAT16)
    assert found.weights == 2 * parameters
    assert found.window(32_768) == (activations + 256) * MIB
    replace(found, available=80 * GIB).check([4096, 32_768])
    # devices that share the window gather the keys and values of all of it, then order them
    shared = copy.copy(found.placement)
    shared.config = MeshConfig(context=4)
    cache = {LLAMA_1B["hidden_size"]: 64, LLAMA_8B["hidden_size"]: 128}[fields["hidden_size"]]
    window = replace(found, placement=shared).window(32_768)
    assert window == (activations / 4 + (2 - 1 / 4) * cache + 256) * MIB


def test_on_a_cpu_bfloat16_is_counted_in_float32():
    narrow, wide = plan(LLAMA_1B | IN_BFLOAT16), plan(LLAMA_1B)
    assert wide.weights == 4 * 1_235_814_400
    assert narrow.weights == (2 + 4) * 1_235_814_400
    assert narrow.window(32_768) == (2 * 1792 + 256) * MIB == wide.window(32_768)


@pytest.mark.usefixtures("accelerator")
def test_weights_are_divided_by_fsdp():
    one = plan(LLAMA_1B)
    # a sharding of four devices, of which this process need not have any
    mesh = jax.sharding.AbstractMesh((1, 4, 1, 1), ("data", "fsdp", "context", "tensor"))
    placement = copy.copy(one.placement)
    placement.mesh = mesh
    four = replace(one, abstract_params=placement.shard_state(one.abstract_params))
    # all but the norms, of which every device has all
    assert 4 * four.weights == pytest.approx(one.weights, rel=1e-3)
    assert four.window(64) == one.window(64)


# What is refused


REFUSED = [  # the model, its attention, GiB of a device, lengths, and what the error says
    (LLAMA_8B, "blockwise", 24, [64], "mesh.fsdp: the weights take at least 29.9 GiB per device"),
    (
        *(LLAMA_8B | IN_BFLOAT16, "xla", 80, [8192, 32_768]),
        "beside 15.0 GiB of weights, takes at least 92.2 GiB per device, but there are only 65.0; "
        "the longest that may fit is 8,192; attention=blockwise takes less",
    ),
    (
        *(LLAMA_8B | IN_BFLOAT16, "blockwise", 16, [8192, 32_768]),
        "takes at least 2.0 GiB per device, but there are only 1.0; the longest that may fit is "
        "8,192",
    ),
]


@pytest.mark.parametrize(("fields", "attention", "there_are", "lengths", "said"), REFUSED)
@pytest.mark.usefixtures("accelerator")
def test_what_does_not_fit_is_refused(fields, attention, there_are, lengths, said):
    found = plan(fields | {"attention": attention})
    replace(found, available=400 * GIB).check(lengths)
    with pytest.raises(UserError, match=re.escape(said)):
        replace(found, available=there_are * GIB).check(lengths)


def test_only_the_window_may_be_overestimated():
    found = plan({}, vocab_size=257)
    least = found.weights + found.window(2048) / LARGEST_OVERESTIMATE
    fitting = replace(found, available=least + 1)
    fitting.check([2048])
    total = found.weights + found.window(2048)
    said = f"{total / GIB:.2g} of {least / GIB:.2g} GiB per device, at 2,048 tokens"
    assert fitting.describe(2048) == said
    with pytest.raises(UserError, match=r"^lengths: "):
        replace(found, available=least - 1).check([2048])


# What XLA allocates


def test_layers_that_rotate_differently_make_their_rotations_one_after_the_other():
    length, layers, pairs = 512, 8, 4
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = ModelConfig(**sizes, num_hidden_layers=layers, layers="scanned", attention="blockwise")
    model = LanguageModel(resolve_model(config).spec(), 11)
    theta = np.linspace(0.1, 1, layers * pairs).reshape(layers, 1, pairs)
    frequencies = Frequencies.from_float64(theta)
    tokens = np.zeros((1, length), np.int32)
    inputs = DecoderInputs(
        tokens, tokens, np.arange(length)[None], None, Rotary.unscaled_queries(frequencies)
    )
    traced = jax.make_jaxpr(model.nll)(model.abstract_params(), inputs)
    sizes = [x.aval.size for equation in traced.eqns for x in equation.outvars]
    assert max(sizes) < layers * length * pairs
