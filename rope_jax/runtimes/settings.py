"""The settings with which transformers, vLLM and llama.cpp read a model with a scaling.

Read from transformers 5.24, vLLM 0.25 (get_rope) and llama.cpp of November 2026 (llama_context).
"""

import contextlib
import itertools
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from rope_jax.checkpoints.describing import describe
from rope_jax.checkpoints.families import Family
from rope_jax.checkpoints.gguf.rope import express
from rope_jax.config.entries import Trained
from rope_jax.config.strategy import Strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, Scaling
from rope_jax.rope.hf.model_types import SOFTMAX_SCALED
from rope_jax.rope.hf.read import LENGTH
from rope_jax.rope.strategies.explicit import ExplicitScaling

_KEYS = "rope_parameters", "max_position_embeddings", LENGTH
_TENSORS = {"llama3": "rope_freqs.weight", "longrope": "rope_factors_long.weight"}
"""What divides frequencies in a GGUF file of a model that was trained with a rope type."""
_FLAGS = {
    "rope.scaling.type": "--rope-scaling",
    "rope.scaling.factor": "--rope-scale",
    "rope.freq_base": "--rope-freq-base",
    "rope.scaling.attn_factor": "--yarn-attn-factor",
    "rope.scaling.original_context_length": "--yarn-orig-ctx",
    "rope.scaling.yarn_beta_fast": "--yarn-beta-fast",
    "rope.scaling.yarn_beta_slow": "--yarn-beta-slow",
}
"""The flag in place of each key of a GGUF file."""
READ_DIVISORS = {
    *("llama", "mistral", "granite", "granitemoe", "arcee", "exaone", "exaone4", "llama4_text"),
}
"""Types for which llama.cpp reads rope_freqs.weight."""
_OWN_BASE = {
    *("gemma2", "gemma3_text", "olmo3", "cohere2", "exaone4", "llama4_text", "gpt_oss"),
}
"""Types whose sliding layers have keys of their own in a GGUF file, which no flag replaces."""
_M_IN_FILE = {*SOFTMAX_SCALED, "ministral3"}
"""Types whose GGUF file says what m of YaRN is divided by."""
_REL = 1e-6  # of frequencies in float32


class Runtime(NamedTuple):
    """What to set in one runtime.

    settings: of transformers, keys of config.json; of the others, options of their commands. Empty
              if it cannot read with the scaling.
    note:     why it cannot, or what else to know of it: a sentence whose subject is the name.
    """

    name: str
    settings: Mapping[str, Any]
    note: str = ""

    @property
    def pasted(self) -> str:
        """What to paste: keys of config.json, or a line of shell."""
        if self.name == "transformers":
            lines = (f"  {json.dumps(k)}: {json.dumps(x)}" for k, x in self.settings.items())
            return "{\n" + ",\n".join(lines) + "\n}"
        command = "vllm serve MODEL" if self.name == "vLLM" else "llama-server -m MODEL.gguf"
        texts = (
            f"{x:.9g}" if isinstance(x, float) else x if isinstance(x, str) else json.dumps(x)
            for x in self.settings.values()
        )
        words = zip(self.settings, map(shlex.quote, texts), strict=True)
        return " ".join([command, *(word for both in words for word in both)])


Rotation = tuple[RotaryGeometry, Scaling]


def frequencies(rotation: Rotation, length: int) -> tuple[Float64[np.ndarray, " pairs"], float]:
    """Return θ' in radians per token and m, for a text of this length."""
    geometry, scaling = rotation
    inv_freq, m = scaling.host_frequencies(geometry, length)
    return inv_freq, float(np.asarray(m))


class _Layer(NamedTuple):
    """How a layer rotates, as wanted and as trained; slides: it has a window."""

    wanted: Rotation
    own: Rotation
    slides: bool


def runtime_settings(
    training: TrainingConfig,
    strategy: Strategy,
    trained: Trained,
    length: int,
    model_type: str | None = None,
) -> list[Runtime]:
    """Return what to set in transformers, vLLM and llama.cpp to read texts up to a length.

    trained: how the checkpoint was trained, as its config.json and its GGUF file say.
    model_type: of the model's family; None: the first that can express it.
    """
    rotary, elements, lacks = training.rotary_layers, training.pattern, ""
    own_rope: dict[str, Any] = {}
    layers = [
        _Layer(
            wanted=rotary.for_layer(i, strategy.scaling),
            own=rotary.for_layer(i, trained.scaling),
            slides=bool(element.sliding_window or element.attention_chunk),
        )
        for i, element in zip(range(rotary.count), itertools.cycle(elements), strict=False)
    ]
    try:
        _, own_keys = describe(training, trained.scaling, length, 1, model_type)
        own_rope = _full(own_keys)
    except UserError as error:  # the model itself may be in no family
        lacks = _reason(error)
    try:
        family, keys = describe(training, strategy.scaling, length, 1, model_type)
        lacks = ""
    except UserError as error:
        lacks = lacks or next(_lacks(layers), _reason(error))
    if strategy.map is not None:
        lacks = f"has no position maps ({strategy.map.type})"
    if lacks:
        return [Runtime(name, {}, lacks) for name in ("transformers", "vLLM", "llama.cpp")]
    note = "reads these in place of rope_scaling and rope_theta, the keys of version 4"
    if family.multimodal:
        note += ", and inside of text_config if the file has one"
    return [
        Runtime("transformers", {name: keys[name] for name in _KEYS if name in keys}, note),
        _vllm(layers, keys, length, family),
        _llama_cpp(layers, keys, length, family, own_rope),
    ]


def _lacks(layers: Sequence[_Layer]) -> Iterator[str]:
    """Yield what a scaling needs and no runtime has, or only for models of another family."""
    for geometry, scaling in dict.fromkeys(layer.wanted for layer in layers):
        if scaling.query_scale is not None:
            yield f"has no such scale on queries ({scaling.query_scale.type})"
        if scaling.length_dependent:
            yield f"has no frequencies that follow the length as those of {scaling.type}"
        elif not scaling.host_frequencies(geometry)[0].all():
            yield f"has no form for pairs that do not rotate ({scaling.type}), but in a GGUF file"


def _reason(error: UserError) -> str:
    """Return why `describe` finds no family, without what to do about it."""
    why = str(error).partition("(")[2].rpartition(")")[0] or str(error)
    return f"cannot express it: {why}"


def _by_type(keys: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return rope_parameters by layer type, {"": …} where all layers share them."""
    rope = keys["rope_parameters"]
    return {name: dict(x) for name, x in ({"": rope} if "rope_type" in rope else rope).items()}


def _full(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rope_parameters of layers that see the whole text, if any do."""
    parts = _by_type(keys)
    return parts.get("full_attention", next(iter(parts.values())))


def _vllm(
    layers: Sequence[_Layer], keys: Mapping[str, Any], length: int, family: Family
) -> Runtime:
    """Return vLLM's options: --hf-overrides replaces a mapping as a whole, with rope_theta."""
    rotating = [x for x in layers if x.wanted[1].type != "drope"]
    shown = min(rotating, key=lambda x: x.slides).wanted
    _, m = frequencies(shown, length)
    parts, longest = _by_type(keys), length
    for part in parts.values():
        kind, factor, lacks = part["rope_type"], part.get("factor", 1.0), ""
        if kind == "dynamic":
            lacks = "computes the frequencies of dynamic scaling once, for its longest text"
        elif kind == "proportional":
            lacks = "has proportional frequencies for Gemma 4 alone"
        elif kind == "longrope" and family.layout == "interleaved":
            lacks = "has longrope for pairs of dimensions i and i + d/2 alone"
        elif kind == "yarn" and (most := math.ceil(factor * part[LENGTH])) < length:
            lacks = f"reads at most {most:,} tokens with this YaRN, its factor × L"
        if lacks:
            return Runtime("vLLM", {}, lacks)
        if kind == "yarn":
            scales = part.get("mscale", 1.0), part.get("mscale_all_dim", 0.0)
            if family.model_type not in SOFTMAX_SCALED:
                scales = 1.0, 0.0
            usual, divisor = (0.1 * scale * math.log(factor) + 1 for scale in scales)
            if not math.isclose(m, usual / divisor, rel_tol=_REL):
                # some versions read attention_factor, the others multiply by attn_factor
                part |= {"attention_factor": m, "attn_factor": m * divisor / usual}
        if kind == "longrope":  # in place of attention_factor
            part |= dict.fromkeys(("short_mscale", "long_mscale"), part["attention_factor"])
        if kind == "linear" and len(parts) == 1:
            longest = math.ceil(length / factor)  # which vLLM multiplies by the factor
    overrides = {"rope_parameters": parts.get("", parts), "max_position_embeddings": longest}
    note = "takes long_factor for all texts if --max-model-len is above the original length"
    settings = {"--hf-overrides": overrides, "--max-model-len": length}
    return Runtime("vLLM", settings, note if shown[1].length_dependent else "")


def _llama_cpp(
    layers: Sequence[_Layer],
    keys: Mapping[str, Any],
    length: int,
    family: Family,
    own_rope: Mapping[str, Any],
) -> Runtime:
    """Return llama.cpp's flags for a GGUF file of the model with its own rope_parameters."""
    fixed = [x for x in layers if x.slides and family.model_type in _OWN_BASE]
    kinds = {(x.wanted, x.own) for x in layers if x not in fixed and x.wanted[1].type != "drope"}
    own_type, flags, lacks, note = own_rope.get("rope_type", ""), {}, "", ""
    if _full(keys)["rope_type"] == "dynamic":
        lacks = "has no frequencies that follow the length"
    elif any(x.wanted != x.own for x in fixed):
        lacks = "has no flag that changes sliding layers, which these settings would change"
    elif len(kinds) != 1:
        lacks = "has no flags for only some of the layers that see the whole text"
    elif any(x.wanted != x.own for x in layers) or (
        own_type == "yarn" and family.model_type not in _M_IN_FILE  # whose file may lack β and m
    ):
        ((wanted, own),) = kinds
        if held := _TENSORS.get(own_type):
            note = f"applies these on top of the file's {held} ({own_type}), which no flag removes"
        flags = _flags(wanted, own if held else None, length)
        if flags.get("--rope-freq-base") == own_rope.get("rope_theta"):
            flags.pop("--rope-freq-base", None)
        if not flags or ("--yarn-attn-factor" in flags and fixed):  # m is of all
            lacks = f"has no flags for these numbers, and {_in_file(wanted, family.model_type)}"
    return Runtime("llama.cpp", {} if lacks else {"-c": length} | flags, lacks or note)


def _in_file(wanted: Rotation, model_type: str) -> str:
    """Return whether a GGUF file can hold a rotation, in words."""
    with contextlib.suppress(ValueError):
        express(*wanted, ["rope_freqs"] if model_type in READ_DIVISORS else [])
        return "needs a GGUF file that rope-jax export writes"
    return f"reads none from a file of {model_type}"


def _flags(wanted: Rotation, held: Rotation | None, length: int) -> dict[str, float | str]:
    """Return the flags that give a rotation, on top of what a file holds, if anything; or {}."""
    geometry, scaling = wanted
    try:
        if held is not None:
            (theta, m), (own_theta, own_m) = (frequencies(x, length) for x in (wanted, held))
            rest = tuple(geometry.inv_freq() * theta / own_theta)
            scaling = ExplicitScaling(inv_freq=rest, attention_factor=m / own_m)
        keys, _ = express(geometry, scaling, ["yarn_betas"])
    except ValueError:  # a vector of another form
        return {}
    flags = {flag: value for key, flag in _FLAGS.items() if (value := keys.get(key)) is not None}
    # with YaRN, llama.cpp ignores it
    is_lost = flags["--rope-scaling"] == "yarn" and "--yarn-attn-factor" in flags
    return {} if is_lost else flags
