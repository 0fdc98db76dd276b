"""Hugging Face configs of models whose layers differ."""

import pytest

from rope_jax.rope.hf import from_hf, layers_from_hf
from tests.rope.test_hf import BASE


def types_of(count, every):
    return ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)]


GEMMA3_NOW = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "layer_types": types_of(12, 6),
}
GEMMA3_BEFORE = {
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window_pattern": 6,
}


@pytest.mark.parametrize("form", [GEMMA3_NOW, GEMMA3_BEFORE], ids=["5.x", "4.x"])
def test_gemma3s_global_and_local_layers_are_read(form):
    config = {"head_dim": 256, "max_position_embeddings": 131072, "num_hidden_layers": 12} | form
    layers, scaling = layers_from_hf(config)
    assert layers.count == 12
    assert len(layers.pattern) == 6
    for layer in range(12):
        geometry, own = layers.for_layer(layer, scaling)
        is_global = layer % 6 == 5
        assert geometry.base == (1e6 if is_global else 1e4)
        assert own.type == ("pi" if is_global else "none")
    with pytest.raises(ValueError, match=r"^layer_type: .* differ; name one, or use layers_from"):
        from_hf(config)
    assert from_hf(config, "full_attention")[1].type == "pi"
    with pytest.raises(ValueError, match=r"^layer_type: 'global' is not one of full_attention, sl"):
        from_hf(config, "global")


def types_in(config):
    layers, scaling = layers_from_hf(BASE | {"num_hidden_layers": 8} | config)
    return [layers.for_layer(i, scaling)[1].type for i in range(8)]


SLIDING = {"sliding_window": 4096, "layer_types": types_of(8, 4)}


@pytest.mark.parametrize(
    ("config", "every"),
    [
        ({"model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0] * 2}, 4),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 0] * 4}, 2),
        # recognized by its type
        ({"model_type": "cohere2"} | SLIDING, 4),
        # by default, as Llama 4's own config.json has it
        *(({"model_type": name} | given, 4)
          for name in ("llama4_text", "smollm3")
          for given in ({}, {"no_rope_layers": []}, {"no_rope_layers": None})),
        ({"model_type": "llama4_text", "no_rope_layer_interval": 2, "no_rope_layers": []}, 2),
    ],
)  # fmt: skip
def test_layers_without_positions_are_read_as_drope(config, every):
    assert types_in(config) == (["none"] * (every - 1) + ["drope"]) * (8 // every)


def test_only_llama_4_scales_the_queries_of_layers_without_positions():
    config = BASE | {"num_hidden_layers": 8, "no_rope_layers": [1, 1, 1, 0] * 2}
    layers, scaling = layers_from_hf(config | {"model_type": "smollm3"})
    assert len(layers.pattern) == 4
    assert not layers.has_query_scale(scaling)
    llama = {"model_type": "llama4_text", "attn_temperature_tuning": True, "floor_scale": 4096}
    layers, scaling = layers_from_hf(config | llama)
    assert layers.for_layer(3, scaling)[1].query_scale.floor_scale == 4096
    assert layers.for_layer(0, scaling)[1].query_scale is None


def test_llama_4_scouts_config_is_read():
    rope = {"rope_type": "llama3", "factor": 16.0, "original_max_position_embeddings": 8192}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 1.0}
    config = {"text_config": BASE | {"rope_scaling": rope, "model_type": "llama4_text"}}
    config["text_config"] |= {"num_hidden_layers": 48, "no_rope_layers": [], "head_dim": 128}
    layers, scaling = layers_from_hf(config)
    assert (layers.geometry.train_length, scaling.factor) == (8192, 16.0)
    assert layers.for_layer(3, scaling)[1].query_scale.floor_scale == 8192
    assert layers.head_dim == 128


def test_only_phi_moes_own_m_is_read():
    """transformers 5.24 reads both keys for phimoe and neither for phi3."""
    rope = {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    rope |= {"short_mscale": 1.5, "long_mscale": 1.5}
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": 32}
    config = BASE | lengths | {"rope_scaling": rope}
    moe = config | {"model_type": "phimoe"}
    assert from_hf(moe)[1].attention_factor == 1.5
    with pytest.raises(ValueError, match=r"^short_mscale: differs from long_mscale"):
        from_hf(moe | {"rope_scaling": rope | {"long_mscale": 1.25}})
    for model_type in ("phi3", "llama"):
        geometry, scaling = from_hf(config | {"model_type": model_type})
        # √(1 + ln 2 / ln 32), as transformers computes it
        assert scaling.m(geometry) == pytest.approx(1.0954451150103321, rel=1e-12)


def test_layers_may_differ_in_rotary_dim():
    rope = {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default"},
    }
    config = BASE | {"rope_parameters": rope, "layer_types": types_of(8, 8)}
    config |= {"num_hidden_layers": 8}
    assert types_in(config) == ["none"] * 7 + ["p_rope"]
    for wider in ({"global_head_dim": 128}, {"per_layer_config": {"07": {"head_dim": 128}}}):
        assert from_hf(config | wider, "full_attention")[0].rotary_dim == 128
        assert from_hf(config | wider, "sliding_attention")[0].rotary_dim == 64
        layers, scaling = layers_from_hf(config | wider)
        frequencies = layers.frequencies(scaling).inv_freq
        assert frequencies.shape == (8, 1, 64)
        assert not frequencies[:7, :, 32:].any()
        assert frequencies[7, 0, :16].all()
        assert not frequencies[7, 0, 16:].any()
