"""Hugging Face configs: parity with transformers, every form that it writes, and what is refused.

scripts/golden_hf.py writes golden_hf.json; it needs transformers, these tests do not.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry, parse_scaling
from rope_jax.rope.hf import from_hf, to_hf

GOLDEN = json.loads((Path(__file__).parent / "golden_hf.json").read_text(encoding="utf-8"))
KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
# transformers computes in float32; llama3's blend, where two numbers cancel, is the least exact
RTOL = {"llama3": 6e-6, "yarn": 3e-6}
BASE = {"head_dim": 64, "rope_theta": 10000.0, "max_position_embeddings": 4096}


def kind_of(config):
    rope = config.get("rope_scaling") or config["rope_parameters"]
    return rope.get("rope_type", rope.get("type"))


def numbers(pair, seq_len=1):
    geometry, scaling = pair
    made = scaling.frequencies(geometry, seq_len)
    return np.float64(made.inv_freq) + np.float64(made.inv_freq_remainder), made.attention_factor


def assert_same(one, other, rtol=1e-12):
    np.testing.assert_allclose(one[0], other[0], rtol=rtol)
    assert one[1] == pytest.approx(other[1], rel=max(rtol, 1e-7))


# Parity


@pytest.mark.parametrize("kind", KINDS)
def test_golden_values_of_transformers_are_met_and_survive_writing(kind):
    cases = [case for case in GOLDEN if kind_of(case["config"]) == kind]
    assert len(cases) >= 15
    for case in cases:
        config, length = case["config"], case["seq_len"]
        geometry, scaling = from_hf(config)
        found = numbers((geometry, scaling), length)
        assert_same(found, (np.array(case["inv_freq"]), case["m"]), RTOL.get(kind, 1e-6))
        again = from_hf(to_hf(geometry, scaling, head_dim=config["head_dim"]))
        assert again[0] == geometry
        assert_same(numbers(again, length), found)


# Known mistakes


def test_the_base_never_falls_back_silently():
    unknown = {"head_dim": 64, "max_position_embeddings": 4096, "model_type": "unknown"}
    with pytest.raises(ValueError, match=r"^rope_theta: is missing, both in the rope parameters"):
        from_hf(unknown)
    assert from_hf(unknown | {"model_type": "llama"})[0].base == 10000.0
    assert from_hf(unknown | {"model_type": "cohere"})[0].base == 500_000.0
    inside = unknown | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert from_hf(inside)[0].base == from_hf(unknown | {"rope_theta": 5e5})[0].base == 5e5
    with pytest.raises(ValueError, match=r"^rope_theta: is 500000.0 in the rope parameters but 10"):
        from_hf(inside | {"rope_theta": 1e4})


# Forms

HEADS = {"hidden_size": 4096, "num_attention_heads": 32}


@pytest.mark.parametrize(
    ("config", "rotary_dim"),
    [
        (HEADS | {"model_type": "llama"}, 128),
        (HEADS | {"head_dim": 64}, 64),
        (HEADS | {"head_dim": None, "model_type": "mistral"}, 128),
        # Zamba 2 and JetMoE have names of their own, and heads wider than hidden_size / heads
        (HEADS | {"attention_head_dim": 160}, 160),
        (HEADS | {"kv_channels": 64}, 64),
        (HEADS | {"qk_rope_head_dim": 64}, 64),
        ({"head_dim": 80, "partial_rotary_factor": 0.4}, 32),
        ({"head_dim": 128, "rotary_dim": 64}, 64),
        ({"head_dim": 96, "rotary_pct": 0.25, "model_type": "gpt_neox"}, 24),
        ({"text_config": {"head_dim": 48, "rope_theta": 1e4, "max_position_embeddings": 8}}, 48),
    ],
)
def test_the_rotary_dimension_is_found_in_every_form(config, rotary_dim):
    config = {"rope_theta": 1e4, "max_position_embeddings": 2048} | config
    assert from_hf(config)[0].rotary_dim == rotary_dim


def test_gpt_neoxs_own_keys_are_read():
    config = {"model_type": "gpt_neox", "hidden_size": 768, "num_attention_heads": 12}
    config |= {"rotary_pct": 0.25, "rotary_emb_base": 1e5, "max_position_embeddings": 2048}
    assert from_hf(config)[0] == RotaryGeometry(16, 1e5, 2048)
    with pytest.raises(ValueError, match=r"^partial_rotary_factor: is missing; gpt_neox"):
        from_hf({key: value for key, value in config.items() if key != "rotary_pct"})


LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": LLAMA3, "rope_theta": 5e5},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5, "rope_type": "llama3"}},
        {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3, "rope_theta": 5e5},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5, "partial_rotary_factor": None}},
        {"rope_parameters": {"full_attention": LLAMA3 | {"rope_theta": 5e5}}},
    ],
)
def test_rope_parameters_are_found_in_every_place(config):
    geometry, scaling = from_hf({"head_dim": 128, "max_position_embeddings": 131072} | config)
    assert geometry == RotaryGeometry(128, 5e5, 8192)
    assert scaling == parse_scaling({"type": "llama3"})


def test_the_original_length_may_be_beside_the_rope_parameters_or_missing():
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    assert from_hf(BASE | scaled)[0].train_length == 4096
    beside = {"original_max_position_embeddings": 1024}
    assert from_hf(BASE | scaled | beside)[0].train_length == 1024
    yarn_llama = {"rope_type": "yarn", "factor": 4.0, "finetuned": True}  # which has no effect
    assert from_hf(BASE | {"rope_scaling": yarn_llama}) == from_hf(BASE | scaled)
    # the factor from the two lengths
    geometry, scaling = from_hf(BASE | beside | {"rope_scaling": {"rope_type": "yarn"}})
    assert (geometry.train_length, scaling.factor) == (1024, 4.0)
    length = from_hf(BASE | {"original_max_position_embeddings": 32.0} | scaled)[0].train_length
    assert (length, type(length)) == (32, int)


def test_deepseeks_mscale_is_read_if_it_has_an_effect():
    rope = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    rope |= {"beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.5}
    scaling = from_hf(BASE | {"rope_scaling": rope})[1]
    assert (scaling.mscale, scaling.mscale_all_dim) == (0.707, 0.5)
    for idle in ({"mscale": 0}, {"mscale_all_dim": 0}, {"attention_factor": 1.5}):
        assert from_hf(BASE | {"rope_scaling": rope | idle})[1].mscale is None
    assert from_hf(BASE | {"rope_scaling": rope | {"attention_factor": 1.5}})[1].m == 1.5


def test_phi3s_forms_of_longrope_are_read():
    lists = {"short_factor": [1.0] * 32, "long_factor": [2.5] * 32}
    config = BASE | {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    for kind in ("longrope", "su"):
        geometry, scaling = from_hf(config | {"rope_scaling": {"type": kind} | lists})
        assert (geometry.train_length, scaling.factor) == (4096, 32.0)
        assert scaling.frequencies(geometry, 1).attention_factor == pytest.approx(1.1902380714)
    yarn = {"model_type": "phi3", "rope_scaling": {"type": "yarn"} | lists}
    assert from_hf(config | yarn)[1] == scaling


def test_ministrals_query_scale_is_read_and_written():
    rope = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384}
    rope |= {"llama_4_scaling_beta": 0.1, "max_position_embeddings": 262144}
    config = BASE | {"rope_parameters": rope | {"rope_theta": 1e6}}
    del config["rope_theta"]
    geometry, scaling = from_hf(config)
    assert scaling.query_scale.model_dump() == {"type": "ministral", "beta": 0.1}
    assert from_hf(to_hf(geometry, scaling)) == (geometry, scaling)


def test_deepseeks_softmax_scale_is_a_query_scale():
    rope = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    config = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "rope_theta": 10000}
    config |= {"max_position_embeddings": 163840}
    geometry, scaling = from_hf(config | {"rope_scaling": rope})
    assert scaling.m == 1  # of DeepSeek V3, whose logits are multiplied by 1.3689²
    assert scaling.query_scale.s == pytest.approx(1.3688879454113936**2, rel=1e-12)

    def again(scaling):
        return from_hf(config | to_hf(geometry, scaling, model_type="deepseek_v3"))[1]

    assert again(scaling) == scaling
    # of another scaling with DeepSeek's m, only m is written, which leaves the softmax alone
    plain = scaling.model_copy(update={"query_scale": None, "mscale": 2.0})
    assert (again(plain).query_scale, again(plain).m) == (None, plain.m)
    other = scaling.model_copy(update={"factor": 8.0})
    with pytest.raises(ValueError, match=r"^query_scale: constant has no form"):
        to_hf(geometry, other)
    with pytest.raises(ValueError, match=r"^query_scale.s: is 1.87\d+, but .* computes 1.459129 "):
        to_hf(geometry, other, model_type="deepseek_v3")
    scale = scaling.query_scale.model_copy(update={"s": 1.459129})  # as the documentation has it
    given = other.model_copy(update={"query_scale": scale})
    assert again(given).query_scale.s == pytest.approx(1.459129, abs=1e-6)
    del rope["mscale"]
    with pytest.raises(ValueError, match=r"^mscale_all_dim: is given without mscale"):
        from_hf(config | {"rope_scaling": rope})


# Refused


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "yran", "factor": 2}, "rope_type: 'yran' is not one of default, linear, dy"),
        ({"rope_type": "linear", "type": "yarn", "factor": 2}, "rope_type: .* have 'linear' and"),
        ({"rope_type": "linear"}, "factor: is required for rope_type linear"),
        ({"rope_type": "linear", "factor": 0.5}, "factor: .*greater than or equal to 1"),
        ({"factor": 2.0}, "factor: is not used in rope parameters of type default; they may have"),
        ({"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 4}, "beta_fast .1. must"),
        ({"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 1024},
         "original_max_position_embeddings: is 1024, but dynamic"),
        ({"rope_type": "default", "partial_rotary_factor": 0.3}, "rotary_dim: 19 is not an even"),
        ({"rope_type": "default", "partial_rotary_factor": "x"}, "partial_rotary_factor: should"),
        ({"rope_type": "default", "rope_theta": True}, "rope_theta: "),
    ],
)  # fmt: skip
def test_bad_rope_parameters_are_refused_by_name(rope, message):
    config = {"head_dim": 64, "max_position_embeddings": 4096, "rope_parameters": rope}
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        from_hf(config if "rope_theta" in rope else config | {"rope_theta": 1e4})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_position_embeddings": None}, "max_position_embeddings: is required"),
        ({"max_position_embeddings": 4096.5}, "max_position_embeddings: should be a whole number"),
        # known to transformers, which has a default of its own for it (128)
        ({"head_dim": None, "hidden_size": 1024, "num_attention_heads": 16, "model_type": "qwen3"},
         "head_dim: is missing, and how wide the heads of model_type 'qwen3' are is not known"),
        ({"alibi": True}, "alibi: is true; this model does not rotate"),
        ({"position_embedding_type": "nope"}, "position_embedding_type: is 'nope'; this model"),
        ({"rope_pct": 0.25}, "rope_pct: is not supported"),
        ({"model_type": "llama", "partial_rotary_factor": 0.5},
         "partial_rotary_factor: is ignored by transformers' llama"),
        ({"rope_scaling": "yarn"}, "rope_scaling: should be a mapping, not 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"type": "yarn"}},
         "rope_scaling, rope_parameters: differ; keep one"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}, "factor": 2}},
         "rope_parameters.factor: is mixed with a mapping per layer type"),
    ],
)  # fmt: skip
def test_bad_configs_are_refused_by_name(config, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        from_hf(BASE | config)
