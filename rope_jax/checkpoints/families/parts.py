"""Keys, modules and types of layers that several lineages of families share."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from rope_jax.checkpoints.families.base import FULL, REQUIRED, SLIDING, Form, Key
from rope_jax.config.messages import show_value

ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(
        ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"),
        "gelu_tanh",
    ),
    "relu2": "relu_squared",
}


def power_of(exponent: int) -> Form:
    """Return the form in which our value is that of the key, a number above 0, to some power."""

    def read(value: Any) -> float | None:
        if value is not None and not (isinstance(value, int | float) and 1e-99 < value < 1e99):
            raise ValueError(f"should be a number above 0, not {value!r}")
        return None if value is None else float(value) ** exponent

    def written(value: Any) -> Any:
        return float(value) ** (1 / exponent) if isinstance(value, int | float) else value

    return Form(read, written)


def _first_layers(numbers: Any) -> int:
    """Return how many layers are listed. ValueError: they are not the first ones."""
    numbers = [] if numbers is None else numbers
    if not isinstance(numbers, list) or numbers != [*range(len(numbers))]:
        raise ValueError(f"{show_value(numbers)} are not the first layers")
    return len(numbers)


FIRST_LAYERS = Form(_first_layers, lambda count: list(range(count)))
"""The numbers of the first layers, in our config how many these are."""


def every(period: int, key: str = "") -> Callable[[Mapping[str, Any], int], list[str]]:
    """Return a function for layer types of which every `period`-th is global.

    key: the key of config.json that may say another period, if the family's code reads one.
    """

    def types(config: Mapping[str, Any], count: int) -> list[str]:
        every = config.get(key) or period
        return [SLIDING if (layer + 1) % every else FULL for layer in range(count)]

    return types


SIZES = tuple(
    Key(name, (name,))
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
)


def llama_keys(
    *,
    heads: int | object = REQUIRED,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    eps: float = 1e-6,
    norm_eps: str = "rms_norm_eps",
    initializer_range: float = 0.02,
    tied: bool = False,
    without: Collection[str] = (),
) -> tuple[Key, ...]:
    """Return the keys that most families have, with a family's defaults.

    activation: the key of the activation, and its default. without: the keys that it lacks.
    """
    keys = (
        *SIZES,
        Key("num_attention_heads", ("num_attention_heads",), heads),
        Key("num_key_value_heads", ("num_key_value_heads",), kv_heads),
        Key("head_dim", ("head_dim",), head_dim),
        Key(activation[0], ("activation",), activation[1], ACTIVATIONS),
        Key(norm_eps, ("rms_norm_eps",), eps),
        Key("initializer_range", ("initializer_range",), initializer_range),
        Key("tie_word_embeddings", ("tie_word_embeddings",), tied),
    )
    return tuple(key for key in keys if key.name not in without)


ATTENTION_BIAS = Key("attention_bias", ("qkv_bias", "o_bias"), False)
MLP_BIAS = Key("mlp_bias", ("mlp_bias",), False)
QKV_BIAS = Key("attention_bias", ("qkv_bias",), False)


def layer_norm_keys(activation: str, **changes: Any) -> tuple[Key, ...]:
    """Return the keys of most families with a LayerNorm."""
    of_act = ("hidden_act", activation)
    return llama_keys(activation=of_act, eps=1e-5, norm_eps="layer_norm_eps", **changes)


def expert_keys(name: str, experts: int, chosen: int) -> tuple[Key, ...]:
    """Return the keys about a router, with a family's defaults. name: that of the first one."""
    return (
        Key(name, ("feed_forward.num_experts",), experts),
        Key("num_experts_per_tok", ("feed_forward.num_experts_per_tok",), chosen),
    )


def block_keys(slot: str, **defaults: Any) -> tuple[Key, ...]:
    """Return keys that are called as the fields of a block that they set."""
    return tuple(Key(name, (f"{slot}.{name}",), default) for name, default in defaults.items())


def renamed(**names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that gives keys of a config other names."""
    return lambda config: {names.get(key, key): value for key, value in config.items()}


def both_norms(after_attention: str, after_mlp: str) -> dict[str, tuple[str, ...]]:
    """Return the modules of norms before and after, of which those before are called as Llama's."""
    return {
        after_attention: ("post_attention_layernorm",),
        "post_attention_layernorm": ("pre_feedforward_layernorm",),
        after_mlp: ("post_feedforward_layernorm",),
    }


NORMALIZED = Key("norm_topk_prob", ("feed_forward.norm_topk_prob",), False)
MLP = ("gate_proj", "up_proj", "down_proj")
GATE_UP: dict[str, tuple[str, ...]] = {"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}
ROUTED = {
    "mlp.gate": ["mlp.router"],
    **{f"mlp.experts.{{}}.{part}": [f"mlp.experts.{part}"] for part in MLP},
}
EXPERTS = {"feed_forward.type": "experts"}
"""Fields of a model with experts."""
BY_HEAD = {False: False, True: "by_head"}
BIASES = {
    **{"norm": "layer_norm", "gated_mlp": False},
    **{"qkv_bias": True, "o_bias": True, "mlp_bias": True},
}
"""Fields of a model with LayerNorm, without gates and with all biases."""
