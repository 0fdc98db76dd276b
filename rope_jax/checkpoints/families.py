"""The model families of transformers: their config keys, their tensors, and how layers differ.

A family is data: which keys of config.json set which fields of `ModelConfig`, which fields have
the same value in every model of the family, and the names of its tensors. The decoder is the same
for all. Read from the configuration_*.py and modeling_*.py of transformers 5.24;
`tests/checkpoints/golden/config_keys.json` lists the keys that these read, with their defaults.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rope_jax.checkpoints.weights import Row
from rope_jax.config.model import ModelConfig
from rope_jax.rope.hf.read import positive_int

REQUIRED = object()
"""Default of a key that a config must have."""

_SLIDING, _FULL = "sliding_attention", "full_attention"
_ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(
        ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"),
        "gelu_tanh",
    ),
}


class Key(NamedTuple):
    """A key of config.json.

    fields:  the fields of `ModelConfig` that it sets, all to the same value.
    default: transformers' value if the key is absent.
    values:  our name for each of its values; None: the values are the same.
    """

    name: str
    fields: tuple[str, ...]
    default: Any = REQUIRED
    values: Mapping[str, str] | None = None

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that the key sets. ValueError: it is missing, or unknown to us."""
        value = config.get(self.name, self.default)
        if value is REQUIRED or (value is None and self.default is REQUIRED):
            raise ValueError(f"{self.name}: is required but was not given")
        if self.values is not None:
            if not isinstance(value, str) or value not in self.values:
                raise ValueError(f"{self.name}: {value!r} is not one of {', '.join(self.values)}")
            value = self.values[value]
        return dict.fromkeys(self.fields, value)

    def written(self, model: Mapping[str, Any]) -> Any:
        """Return the key's value, given all fields of a model. ValueError: its own differ."""
        value = model[self.fields[0]]
        if any(model[name] != value for name in self.fields):
            raise ValueError(f"{' and '.join(self.fields)} differ")
        if self.values is None:
            return value
        return next(name for name, own in self.values.items() if own == value)


class Windows(NamedTuple):
    """How a family's config says which layers slide.

    default: transformers' sliding_window if the key is absent.
    types:   the types of `count` layers if layer_types is absent; None: there are no types, and the
             window is that of all layers.
    switch:  whether use_sliding_window has to be true.
    exist:   whether the family's code has sliding windows at all.
    """

    default: int | None = None
    types: Callable[[Mapping[str, Any], int], list[str]] | None = None
    switch: bool = False
    exist: bool = True

    def read(self, config: Mapping[str, Any], count: int) -> list[int | None]:
        """Return every layer's number of visible keys; None: all."""
        window = config.get("sliding_window", self.default)
        off = not self.exist or (self.switch and not config.get("use_sliding_window"))
        if window is None or off:
            return [None] * count
        window = positive_int({"sliding_window": window}, "sliding_window")
        if self.types is None:
            return [window] * count
        return [window if kind == _SLIDING else None for kind in self.layer_types(config, count)]

    def layer_types(self, config: Mapping[str, Any], count: int) -> list[str]:
        """Return the type of every layer."""
        if self.types is None:
            return [_FULL] * count
        found = config.get("layer_types")
        if found is None:
            return self.types(config, count)
        if len(found) != count:
            raise ValueError(f"layer_types: should be a list of {count} types, one for each layer")
        if unknown := [kind for kind in found if kind not in (_SLIDING, _FULL)]:
            raise ValueError(f"layer_types: {unknown[0]!r} is not one of {_FULL}, {_SLIDING}")
        return found

    def written(self, windows: Sequence[int | None]) -> dict[str, Any]:
        """Return the keys for these layers. ValueError: the family has no such pattern."""
        sizes = sorted({window for window in windows if window is not None})
        if len(sizes) > 1:
            raise ValueError(f"sliding windows of {' and '.join(map(str, sizes))} tokens differ")
        window = sizes[0] if sizes else None
        if self.types is _every_layer and len(set(windows)) == 1:
            return {"sliding_window": window}  # with layer_types it would be another model type
        if self.types is None:
            if window is not None and (None in windows or not self.exist):
                raise ValueError("layers with a sliding window")
            return {"sliding_window": window} if self.exist else {}
        kinds = [_FULL if own is None else _SLIDING for own in windows]
        keys: dict[str, Any] = {"sliding_window": window, "layer_types": kinds}
        return keys | ({"use_sliding_window": window is not None} if self.switch else {})


def _every_layer(config: Mapping[str, Any], count: int) -> list[str]:
    """Mistral: all layers slide, unless layer_types says otherwise (Ministral)."""
    return [_SLIDING] * count


def _rows(modules: Mapping[str, Sequence[str]], groups: int = 1) -> tuple[Row, ...]:
    """Return the rows of transformers' modules, given the modules here that each holds.

    All of them may have a bias. groups: see `Row`; of modules that hold several.
    """
    rows = []
    for name, ours in modules.items():
        is_norm, is_embedding = ours[0].endswith("norm"), ours[0] == "embed_tokens"
        weight = "scale" if is_norm else "embedding" if is_embedding else "kernel"
        for theirs, leaf in (("weight", weight), ("bias", "bias")):
            paths = tuple(f"{module}/{leaf}" for module in ours)
            rows.append(Row(f"{name}.{theirs}", paths, groups if len(ours) > 1 else 1))
    return tuple(rows)


# Modules of a layer that Llama's code calls as ours does.
_IN_LAYERS = (
    *("input_layernorm", "post_attention_layernorm"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
_PHI3_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def _llama_rows(model: ModelConfig, fused: Mapping[str, Sequence[str]] = {}) -> tuple[Row, ...]:
    held = {name for names in fused.values() for name in names}
    in_layers = {name: (name,) for name in _IN_LAYERS if name not in held} | {**fused}
    return _rows(
        {
            "model.embed_tokens": ["embed_tokens"],
            **{
                f"model.layers.{{}}.{theirs}": [f"layers/{name.replace('.', '/')}" for name in ours]
                for theirs, ours in in_layers.items()
            },
            "model.norm": ["norm"],
            "lm_head": ["lm_head"],
        }
    )


def _gpt_neox_rows(model: ModelConfig) -> tuple[Row, ...]:
    layer = "gpt_neox.layers.{}."
    modules = {
        "gpt_neox.embed_in": ["embed_tokens"],
        "gpt_neox.final_layer_norm": ["norm"],
        f"{layer}input_layernorm": ["layers/input_layernorm"],
        f"{layer}post_attention_layernorm": ["layers/post_attention_layernorm"],
        f"{layer}attention.query_key_value": [f"layers/self_attn/{x}_proj" for x in "qkv"],
        f"{layer}attention.dense": ["layers/self_attn/o_proj"],
        f"{layer}mlp.dense_h_to_4h": ["layers/mlp/up_proj"],
        f"{layer}mlp.dense_4h_to_h": ["layers/mlp/down_proj"],
        "embed_out": ["lm_head"],
    }
    return _rows(modules, groups=model.num_attention_heads)


@dataclass(frozen=True)
class Family:
    """A model type of transformers.

    keys:       of config.json, that set fields of the model.
    rows:       its tensors, given the model.
    fixed:      fields of the model that no key sets, where they differ from the defaults.
    defaults:   transformers' values of keys about positions, if they are absent.
    aliases:    its own names for keys about positions, outside of rope_parameters.
    ignored:    keys that the family's code does not read, although their names suggest it.
    partial:    whether it may rotate a part of each head.
    rope_types: the rope types that it may have; None: all.
    nope:       whether layers without rotation can be written (no_rope_layers).
    local:      whether sliding layers have a base of their own and are never scaled.
    """

    model_type: str
    architecture: str
    keys: tuple[Key, ...]
    rows: Callable[[ModelConfig], tuple[Row, ...]] = _llama_rows
    fixed: Mapping[str, Any] = field(default_factory=dict)
    windows: Windows = field(default_factory=lambda: Windows(exist=False))
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    partial: bool = False
    rope_types: tuple[str, ...] | None = None
    nope: bool = False
    local: bool = False


def _every(period: int) -> Callable[[Mapping[str, Any], int], list[str]]:
    """Return a function for layer types of which every `period`-th is global."""

    def types(config: Mapping[str, Any], count: int) -> list[str]:
        every = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", period))
        return [_SLIDING if (layer + 1) % every else _FULL for layer in range(count)]

    return types


def _upper_layers(config: Mapping[str, Any], count: int) -> list[str]:
    """Qwen: the layers from max_window_layers on slide."""
    first = config.get("max_window_layers", 28)
    return [_SLIDING if layer >= first else _FULL for layer in range(count)]


def _unrotated_layers(config: Mapping[str, Any], count: int) -> list[str]:
    """SmolLM3: the layers without positions slide, where windows are used at all."""
    every = config.get("no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers") or [(i + 1) % every for i in range(count)]
    return [_FULL if own else _SLIDING for own in rotates]


_SIZES = tuple(
    Key(name, (name,))
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
)


def _keys(
    *,
    heads: int | object = REQUIRED,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    eps: float = 1e-6,
    tied: bool = False,
) -> tuple[Key, ...]:
    """Return the keys that all families have, except GPT-NeoX, with a family's defaults.

    activation: the key of the activation, and its default.
    """
    return (
        *_SIZES,
        Key("num_attention_heads", ("num_attention_heads",), heads),
        Key("num_key_value_heads", ("num_key_value_heads",), kv_heads),
        Key("head_dim", ("head_dim",), head_dim),
        Key(activation[0], ("activation",), activation[1], _ACTIVATIONS),
        Key("rms_norm_eps", ("rms_norm_eps",), eps),
        Key("initializer_range", ("initializer_range",), 0.02),
        Key("tie_word_embeddings", ("tie_word_embeddings",), tied),
    )


_ATTENTION_BIAS = Key("attention_bias", ("qkv_bias", "o_bias"), False)
_MLP_BIAS = Key("mlp_bias", ("mlp_bias",), False)
_GEMMA = {"norm": "rms_norm_plus_one", "norm_placement": "both", "scale_embeddings": True}
_GEMMA_ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")
_GEMMA_KEYS = (
    *_keys(heads=8, kv_heads=4, head_dim=256, activation=_GEMMA_ACTIVATION, tied=True),
    _ATTENTION_BIAS,
    Key("query_pre_attn_scalar", ("query_pre_attn_scalar",), 256),
)

_ALL = (
    Family(
        "llama",
        "LlamaForCausalLM",
        (*_keys(), _ATTENTION_BIAS, _MLP_BIAS),
        ignored=frozenset({"rope_interleaved"}),  # SmolLM2's
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        _keys(kv_heads=8),
        windows=Windows(default=4096, types=_every_layer),
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        (*_keys(kv_heads=32, head_dim=128), _ATTENTION_BIAS),
        fixed={"qk_norm": True},
        windows=Windows(default=4096, types=_upper_layers, switch=True),
        ignored=frozenset({"max_window_layers"}),
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        _keys(kv_heads=32),
        fixed={"qkv_bias": True},
        windows=Windows(default=4096, types=_upper_layers, switch=True),
        ignored=frozenset({"max_window_layers", "use_mrope"}),
    ),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        (*_keys(kv_heads=4, tied=True), _ATTENTION_BIAS, _MLP_BIAS),
        windows=Windows(types=_unrotated_layers, switch=True),
        defaults={"rope_theta": 2_000_000.0},
        ignored=frozenset({"max_window_layers"}),
        nope=True,
    ),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        _keys(eps=1e-5),
        rows=functools.partial(_llama_rows, fused=_PHI3_FUSED),
        windows=Windows(),
        # transformers' value counts even beside another one in rope_parameters
        defaults={"original_max_position_embeddings": 4096},
        ignored=frozenset(
            {"attention_bias", "full_attn_mod", "interpolate_factor", "lm_head_bias", "mlp_bias"}
        ),
        partial=True,
        rope_types=("default", "longrope"),
    ),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        (
            *_GEMMA_KEYS,
            Key("attn_logit_softcapping", ("attention_softcap",), 50.0),
            Key("final_logit_softcapping", ("logit_softcap",), 30.0),
        ),
        fixed=_GEMMA,
        windows=Windows(default=4096, types=_every(2)),
        ignored=frozenset({"hidden_act", "sliding_window_size"}),
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        (*_GEMMA_KEYS, Key("final_logit_softcapping", ("logit_softcap",), None)),
        fixed=_GEMMA | {"qk_norm": True},
        windows=Windows(default=4096, types=_every(6)),
        defaults={"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0},
        # transformers' code of Gemma 3 does not apply a cap in attention
        ignored=frozenset({"attn_logit_softcapping", "hidden_act"}),
        local=True,
    ),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        (*_keys(eps=1e-5), _ATTENTION_BIAS),
        fixed={"norm_placement": "after", "qk_norm": "all_heads"},
    ),
    Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        (
            *_SIZES,
            Key("num_attention_heads", ("num_attention_heads",)),
            Key("hidden_act", ("activation",), "gelu", _ACTIVATIONS),
            Key("layer_norm_eps", ("rms_norm_eps",), 1e-5),
            Key("initializer_range", ("initializer_range",), 0.02),
            Key("tie_word_embeddings", ("tie_word_embeddings",), False),
            Key("use_parallel_residual", ("parallel_residual",), True),
            Key("attention_bias", ("qkv_bias", "o_bias"), True),
        ),
        rows=_gpt_neox_rows,
        fixed={"norm": "layer_norm", "gated_mlp": False, "mlp_bias": True},
        defaults={"rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
        aliases={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        partial=True,
    ),
)

FAMILIES = {family.model_type: family for family in _ALL}
"""By model_type, in the order in which an export tries them."""
