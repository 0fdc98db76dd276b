"""The model families of transformers: their config keys, their tensors, and how layers differ.

A family is data: which keys of config.json set which fields of `ModelConfig`, which fields have
the same value in every model of the family, and the names of its tensors. The decoder is the same
for all. Read from the configuration_*.py and modeling_*.py of transformers 5.24;
`transformers_keys.toml` has the defaults of its configurations.
"""

import math
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rope_jax.checkpoints.keys import ARCHITECTURES
from rope_jax.checkpoints.tensors import Row
from rope_jax.config.model import ModelConfig
from rope_jax.rope.geometry import Layout
from rope_jax.rope.hf.read import positive_int

REQUIRED = object()
"""Default of a key that a config must have."""
THEIRS = object()
"""Default of a key whose default is transformers', by `transformers_keys.toml`."""
ANY = object()
"""In the values of a key: a field that another key sets."""

PATTERN = "sliding_window_pattern"
SLIDING, FULL = "sliding_attention", "full_attention"


class Form(NamedTuple):
    """How a key writes a value: `read` returns ours, or raises ValueError, and `written` theirs.

    Both are also given the other keys of config.json or fields of the model.
    """

    read: Callable[[Any, Mapping[str, Any]], Any]
    written: Callable[[Any, Mapping[str, Any]], Any]


class Key(NamedTuple):
    """A key of config.json.

    fields:  the fields of `ModelConfig` that it sets; those of a block have its name before them,
             as in `feed_forward.num_experts`.
    default: the value if the key is absent.
    values:  what each of its values, of which there are no others, means: a tuple has one value for
             each field, anything else is that of all fields. None: all fields have the key's value.
    form:    how the key writes the value that all fields have; None: as it is.
    times:   the field is the key's value times that of this key; both are whole numbers, and 0 is
             no such field.
    """

    name: str
    fields: tuple[str, ...]
    default: Any = THEIRS
    values: Mapping[Any, Any] | None = None
    form: Form | None = None
    times: "Key | None" = None

    def with_default(self, theirs: Mapping[str, Any]) -> "Key":
        """Return the key with its default in transformers, unless it has one of its own."""
        default = theirs.get(self.name) if self.default is THEIRS else self.default
        return self._replace(default=default, times=self.times and self.times.with_default(theirs))

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that the key sets. ValueError: it is missing, or unknown to us."""
        value = config.get(self.name, self.default)
        if value is REQUIRED or (value is None and self.default is REQUIRED):
            raise ValueError(f"{self.name}: is required but was not given")
        if self.times is not None:
            factors = {
                self.name: value,
                self.times.name: config.get(self.times.name, self.times.default),
            }
            product = math.prod(positive_int(factors, name) for name in factors if value)
            value = product if value else None
        fields = zip(self.fields, self._of_fields(value, config), strict=True)
        return {name: value for name, value in fields if value is not ANY}

    def written(self, model: Mapping[str, Any]) -> Any:
        """Return the key's value, given all fields of a model. ValueError: no value means these."""
        wanted = tuple(model[name] for name in self.fields)
        if self.form is not None:
            value = self.form.written(wanted[0], model)
            self._of_fields(value, model)  # it has to be readable
            return value
        for value in wanted[:1] if self.values is None else self.values:
            meant = self._of_fields(value, model)
            if all(a == b or a is ANY for a, b in zip(meant, wanted, strict=False)):
                if self.times is None:
                    return value
                if (value or 0) % (factor := model[self.times.fields[0]]) == 0:
                    return (value or 0) // factor
        pairs = zip(self.fields, wanted, strict=True)
        raise ValueError(f"no {' and '.join(f'{field} {value}' for field, value in pairs)}")

    def _of_fields(self, value: Any, others: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what a value of the key means. ValueError: it is none of its values."""
        if self.values is not None:
            known = [x for x in self.values if type(x) is type(value) and x == value]
            if not known:
                expected = ", ".join(map(str, self.values))
                raise ValueError(f"{self.name}: {value!r} is not one of {expected}")
            value = self.values[known[0]]
        elif self.form is not None:
            try:
                value = self.form.read(value, others)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from None
        return value if isinstance(value, tuple) else (value,) * len(self.fields)


IsLocal = Callable[[Mapping[str, Any], int], list[bool]]
"""Which of `count` layers see a part of the text, given a config."""


class LocalWindows(NamedTuple):
    """How a family's config says which layers see a part of the text.

    is_local: which layers have it if layer_types is absent; None: all, and there are no types.
    switch:   whether use_sliding_window has to be true.
    exist:    whether the family's code has such windows at all.
    chunked:  whether they are chunks of the text (Llama 4), and do not slide.
    default:  transformers' window if its key is absent, by `transformers_keys.toml`.
    """

    is_local: IsLocal | None = None
    switch: bool = False
    exist: bool = True
    chunked: bool = False
    default: int | None = None

    @property
    def key(self) -> str:
        """The key of config.json that has their size."""
        return "attention_chunk_size" if self.chunked else "sliding_window"

    @property
    def setting(self) -> str:
        """The setting of a layer that has it."""
        return "attention_chunk" if self.chunked else "sliding_window"

    @property
    def _local(self) -> str:
        return "chunked_attention" if self.chunked else SLIDING

    def read(self, config: Mapping[str, Any], count: int) -> list[int | None]:
        """Return every layer's number of visible keys; None: all."""
        window = config.get(self.key, self.default)
        off = not self.exist or (self.switch and not config.get("use_sliding_window"))
        if window is None or off:
            return [None] * count
        window = positive_int({self.key: window}, self.key)
        if self.is_local is None:
            return [window] * count
        return [None if kind == FULL else window for kind in self.layer_types(config, count)]

    def layer_types(self, config: Mapping[str, Any], count: int) -> list[str]:
        """Return the type of every layer."""
        if self.is_local is None:
            return [FULL] * count
        types: list[str] | None = config.get("layer_types")
        if types is None:
            return [self._local if local else FULL for local in self.is_local(config, count)]
        if len(types) != count:
            raise ValueError(f"layer_types: should be a list of {count} types, one for each layer")
        if unknown := [kind for kind in types if kind not in (self._local, FULL)]:
            raise ValueError(f"layer_types: {unknown[0]!r} is not one of {FULL}, {self._local}")
        return types

    def written(self, windows: Sequence[int | None]) -> dict[str, Any]:
        """Return the keys for these layers. ValueError: the family has no such pattern."""
        sizes = sorted({window for window in windows if window is not None})
        if len(sizes) > 1:
            raise ValueError(f"sliding windows of {' and '.join(map(str, sizes))} tokens differ")
        window = sizes[0] if sizes else None
        if self.is_local is every_layer and len(set(windows)) == 1:
            return {"sliding_window": window}  # with layer_types it would be another model type
        if window is not None and (not self.exist or (self.is_local is None and None in windows)):
            raise ValueError("layers with a sliding window")
        if not self.exist and self.is_local is None:
            return {}
        keys: dict[str, Any] = {self.key: window}
        if self.is_local is not None:
            keys["layer_types"] = [FULL if size is None else self._local for size in windows]
        if self.switch:
            keys["use_sliding_window"] = window is not None
        return keys


def every_layer(config: Mapping[str, Any], count: int) -> list[bool]:
    """Mistral: all layers slide, unless layer_types says otherwise (Ministral)."""
    return [True] * count


_MODULES = tomllib.loads(Path(__file__).with_name("modules.toml").read_text("utf-8"))
FUSED: dict[str, dict[str, list[str]]] = _MODULES["fused"]
"""Modules of a layer that have other names than Llama's, with ours that each holds."""
OUTSIDE: dict[str, dict[str, str]] = _MODULES["outside"]
"""Names of modules outside of the layers, by Llama's."""
# Modules of a layer that Llama's code calls as ours does.
_LAYER_MODULES = (
    *("input_layernorm", "post_attention_layernorm"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


def llama_rows(
    fused: Mapping[str, Sequence[str]], outside: Mapping[str, str] = {}, groups: int = 1
) -> tuple[Row, ...]:
    """Return the rows of a family whose code is structured like Llama's.

    fused: modules of a layer that have other names there, with ours that each holds.
    outside: its names of modules outside of the layers, and of the layers, by Llama's.
    groups: see `Row`; of modules that hold several.
    """
    names = {**OUTSIDE["llama"], **outside}
    held = {name for ours in fused.values() for name in ours}
    in_layers = {name: (name,) for name in _LAYER_MODULES if name not in held} | {**fused}
    modules: dict[str, list[str]] = {names["embed_tokens"]: ["embed_tokens"]}
    for theirs, ours in in_layers.items():
        name = f"{names['layers']}.{{}}.{theirs}"
        modules[name] = [f"layers/{module.replace('.', '/')}" for module in ours]
    modules |= {names["norm"]: ["norm"], names["lm_head"]: ["lm_head"]}
    rows = []
    for name, ours in modules.items():
        is_norm = ours[0].endswith(("norm", "norms"))
        is_embedding = ours[0] == "embed_tokens"
        weight = "scale" if is_norm else "embedding" if is_embedding else "kernel"
        for theirs, leaf in (("weight", weight), ("bias", "bias")):
            paths = tuple(f"{module}/{leaf}" for module in ours)
            rows.append(Row(f"{name}.{theirs}", paths, groups if len(ours) > 1 else 1))
    return tuple(rows)


@dataclass(frozen=True)
class Family:
    """A model type of transformers.

    keys:       of config.json, that set fields of the model.
    fused:      see `llama_rows`.
    outside:    see `llama_rows`.
    by_head:    fused tensors have the parts of one key-value head after the other.
    more_rows:  of tensors that Llama's code has not.
    other_rows: its tensors, given the model, where their names or order depend on it otherwise.
    fixed:      fields of the model that no key sets, where they differ from the defaults.
    defaults:   transformers' values of keys about positions, if they are absent.
    aliases:    its own names for keys about positions, outside of rope_parameters.
    rope_types: the rope types that it may have; None: all.
    local:      whether sliding layers have their own rope parameters and are never scaled.
    layout:     which dimensions form a pair.
    upgrade:    returns a config with keys of later configs in place of those of earlier ones.
    multimodal: other model types of this family, most of which describe it in their text_config.
    """

    model_type: str
    keys: tuple[Key, ...]
    fused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    by_head: bool = False
    more_rows: tuple[Row, ...] = ()
    other_rows: Callable[[ModelConfig], tuple[Row, ...]] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    windows: LocalWindows = field(default_factory=lambda: LocalWindows(exist=False))
    defaults: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    rope_types: tuple[str, ...] | None = None
    local: bool = False
    layout: Layout = "half"
    upgrade: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: config
    multimodal: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        """The class of its models in transformers."""
        return ARCHITECTURES[self.model_type]

    def rows(self, model: ModelConfig) -> tuple[Row, ...]:
        """Return the tensors of a model of the family."""
        if self.other_rows is not None:
            return self.other_rows(model)
        groups = model.kv_heads if self.by_head else 1
        return (*llama_rows(self.fused, self.outside, groups), *self.more_rows)


def with_defaults(keys: Sequence[Key], **defaults: Any) -> tuple[Key, ...]:
    """Return keys of which some have other defaults."""
    return tuple(key._replace(default=defaults.get(key.name, key.default)) for key in keys)


def like(
    family: Family,
    model_type: str,
    *keys: Key,
    without: Collection[str] = (),
    names: Mapping[str, str] = {},
    **changes: Any,
) -> Family:
    """Return a family whose code is another's but for some keys and other changes.

    keys: in addition. without: the keys that it lacks. names: its own for some of those that it
    has.
    """
    kept = [
        key._replace(name=names.get(key.name, key.name))
        for key in family.keys
        if key.name not in without
    ]
    same: dict[str, Any] = {"model_type": model_type, "multimodal": ()}
    return replace(family, keys=(*kept, *keys), **same | changes)


ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(
        ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"),
        "gelu_tanh",
    ),
    "relu2": "relu_squared",
}


def every(period: int, *, from_config: bool = False) -> IsLocal:
    """Return a function for layers of which every `period`-th is global.

    from_config: whether sliding_window_pattern may say another period.
    """

    def is_local(config: Mapping[str, Any], count: int) -> list[bool]:
        every = (config.get(PATTERN) if from_config else None) or period
        return [(layer + 1) % every != 0 for layer in range(count)]

    return is_local


def dense_layers(numbers: Collection[int]) -> int | list[int]:
    """Return the field `dense_layers`: how many first ones these layers are, or their numbers."""
    count = len(numbers)
    return count if {*numbers} == {*range(count)} else sorted(numbers)


def numbers_of(dense: int | Sequence[int]) -> list[int]:
    """Return the numbers of layers without experts: the inverse of `dense_layers`."""
    return [*range(dense)] if isinstance(dense, int) else [*dense]


_BIASES = {"attention_bias": ("qkv_bias", "o_bias"), "mlp_bias": ("mlp_bias",)}
SIZES = tuple(
    Key(name, (name,), REQUIRED)
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
)


def llama_keys(
    *biases: str,
    heads: object = REQUIRED,
    activation: str = "hidden_act",
    norm_eps: str = "rms_norm_eps",
    without: Collection[str] = (),
) -> tuple[Key, ...]:
    """Return the keys that most families have.

    biases: those of `_BIASES` that it has. heads: the default of num_attention_heads.
    activation, norm_eps: its names of these keys. without: the keys that it lacks.
    """
    keys = (
        *SIZES,
        Key("num_attention_heads", ("num_attention_heads",), heads),
        Key(activation, ("activation",), THEIRS, ACTIVATIONS),
        Key(norm_eps, ("rms_norm_eps",)),
        *keys_of("num_key_value_heads", "head_dim", "initializer_range", "tie_word_embeddings"),
        *(Key(name, _BIASES[name]) for name in biases),
    )
    return tuple(key for key in keys if key.name not in without)


def keys_of(*names: str, block: str = "") -> tuple[Key, ...]:
    """Return keys that are called as the fields, of the model or of a block, that they set."""
    return tuple(Key(name, (f"{block}.{name}" if block else name,)) for name in names)


def expert_keys(name: str) -> tuple[Key, ...]:
    """Return the keys about a router. name: that of the first one."""
    return (
        Key(name, ("feed_forward.num_experts",)),
        Key("num_experts_per_tok", ("feed_forward.num_experts_per_tok",)),
    )


def mlp_modules(theirs: str, ours: str) -> dict[str, list[str]]:
    """Return the modules of a gated feed-forward, whose parts have the same names here."""
    return {
        f"{theirs}.{part}": [f"{ours}.{part}"] for part in ("gate_proj", "up_proj", "down_proj")
    }


def experts_in_one(theirs: str) -> tuple[Row, ...]:
    """Return the rows of experts that are one tensor, with inputs before outputs."""
    name, ours = f"model.layers.{{}}.{theirs}.experts.", "layers/mlp/experts/"
    gate_up = f"{ours}gate_proj/kernel", f"{ours}up_proj/kernel"
    return (
        Row(f"{name}gate_up_proj", gate_up, inputs_first=True),
        Row(f"{name}down_proj", (f"{ours}down_proj/kernel",), inputs_first=True),
    )


def both_norms(after_attention: str, after_mlp: str) -> dict[str, list[str]]:
    """Return the modules of norms before and after, of which those before are called as Llama's."""
    return {
        after_attention: ["post_attention_layernorm"],
        "post_attention_layernorm": ["pre_feedforward_layernorm"],
        after_mlp: ["post_feedforward_layernorm"],
    }


GATE_UP = {"mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"]}
ROUTED = {"mlp.gate": ["mlp.router"], **mlp_modules("mlp.experts.{}", "mlp.experts")}
EXPERTS = {"feed_forward.type": "experts"}
ALL_BIASES = {"norm": "layer_norm", "gated_mlp": False} | dict.fromkeys(
    ("qkv_bias", "o_bias", "mlp_bias"), True
)
"""Fields of a model with LayerNorm, without gates and with all biases."""
