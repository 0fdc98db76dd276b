"""The settings with which transformers, vLLM and llama.cpp read a model with a scaling.

Read from transformers 5.24, vLLM 0.25 (get_rope) and llama.cpp of November 2026 (llama_context).
"""

import contextlib
import itertools
import json
import math
import shlex
from collections.abc import Mapping, Sequence
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
_OWN_BASE = {*("gemma2", "gemma3_text", "olmo3", "cohere2", "exaone4", "llama4_text", "gpt_oss")}
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
    rotary = training.rotary_layers
    layers = [
        _Layer(
            wanted=rotary.for_layer(i, strategy.scaling),
            own=rotary.for_layer(i, trained.scaling),
            slides=bool(element.sliding_window or element.attention_chunk),
        )
        for i, element in zip(range(rotary.count), itertools.cycle(training.pattern), strict=False)
    ]
    try:
        if strategy.map is not None:
            raise UserError(f"map: no runtime has any (the position map {strategy.map.type})")
        family, keys = describe(training, strategy.scaling, length, 1, model_type)
    except UserError as error:
        why = str(error).partition("(")[2].rpartition(")")[0] or str(error)
        names = "transformers", "vLLM", "llama.cpp"
        return [Runtime(name, {}, f"cannot express it: {why}") for name in names]
    own_type = "default"
    with contextlib.suppress(UserError):
        _, own_keys = describe(training, trained.scaling, length, 1, family.model_type)
        own_type = _full(own_keys)["rope_type"]
    note = "reads these in place of rope_scaling and rope_theta, the keys of version 4"
    if family.multimodal:
        note += ", and inside of text_config if the file has one"
    return [
        Runtime("transformers", {name: keys[name] for name in _KEYS if name in keys}, note),
        _vllm(layers, keys, length, family),
        _llama_cpp(layers, length, family, _full(keys)["rope_type"], own_type),
    ]


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
    layers: Sequence[_Layer], length: int, family: Family, rope_type: str, own_type: str
) -> Runtime:
    """Return llama.cpp's flags for a GGUF file of the model, whose own rope type is own_type."""
    fixed = [x for x in layers if x.slides and family.model_type in _OWN_BASE]
    kinds = {(x.wanted, x.own) for x in layers if x not in fixed and x.wanted[1].type != "drope"}
    flags, lacks, held = {}, "", _TENSORS.get(own_type)
    # such a file may lack β and m
    is_incomplete = own_type == "yarn" and family.model_type not in _M_IN_FILE
    # of the softmax, which llama.cpp computes from the file and from --rope-scale
    has_own_scale = any(x.own[1].query_scale is not None for x in layers)
    if rope_type == "dynamic":
        lacks = "has no frequencies that follow the length"
    elif has_own_scale and any(x.wanted != x.own for x in layers):
        lacks = "has no flags that keep the scale on queries of this model's file"
    elif any(x.wanted != x.own for x in fixed) or len(kinds) != 1:
        lacks = "has no flags for sliding layers, nor for only some of the others"
    elif is_incomplete or any(x.wanted != x.own for x in layers):
        ((wanted, own),) = kinds
        flags = _flags(wanted, own if held else None, length)
        if not flags or ("--yarn-attn-factor" in flags and fixed):  # m is of all
            lacks = "has no flags for these numbers; a GGUF file from rope-jax export may hold them"
    if lacks:
        return Runtime("llama.cpp", {}, lacks)
    note = f"applies these on top of the file's {held} ({own_type}), which no flag removes"
    return Runtime("llama.cpp", {"-c": length} | flags, note if held and flags else "")


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
    is_yarn = keys["rope.scaling.type"] == "yarn"  # with which llama.cpp ignores attn_factor
    if is_yarn and "rope.scaling.attn_factor" in keys:
        return {}
    return {flag: keys[key] for key, flag in _FLAGS.items() if key in keys}
