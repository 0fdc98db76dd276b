"""GGUF files of golden models, written as llama.cpp's conversion scripts write them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import yaml
from numpy.typing import NDArray

from tests.checkpoints.cases import Case

_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
ARCHITECTURES: dict[str, str] = _TABLE["architectures"]
"""llama.cpp's names of the families in the tests."""
_STACKED = re.compile(r"(\.experts|\.norms)\.\d+")
Tensors = Mapping[str, NDArray[np.float32]]


def write_gguf(
    path: Path,
    case: Case,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    weights: Tensors | None = None,
    **metadata: Any,
) -> Path:
    """Write a golden model.

    kind: of its matrices. metadata: more keys, with __ for points; None: the file lacks the key.
    """
    config = json.loads(case.config)
    name = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, name)
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    if alpha := rope.pop("alpha", None):  # Hunyuan's
        base = rope["rope_theta"] * alpha ** (width / (width - 2))
        rope = {"rope_type": "default", "rope_theta": base}
    if name == "gptneox":
        config.pop("vocab_size")  # not written
    if name == "falcon":
        kv_heads = config["num_kv_heads"] if config["new_decoder_architecture"] else None
        kv_heads = kv_heads or (1 if config["multi_query"] else heads)
        config |= {"num_key_value_heads": kv_heads, "intermediate_size": config["ffn_hidden_size"]}
        config |= {"max_position_embeddings": 2048}
        writer.add_tensor_data_layout("jploski")
    if name == "llama4":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
        config["intermediate_size"] = config["intermediate_size_mlp"]
    if name in ("gpt-oss", "minimax-m2"):
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if name == "deepseek2":
        own = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        writer.add_key_length(own)
        writer.add_value_length(config["kv_lora_rank"])
        writer.add_key_length_mla(config["qk_head_dim"])
        if "mscale_all_dim" in rope:
            rope["mscale_all_dim"] *= 0.1
        if config["model_type"] == "deepseek_v3":
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_expert_weights_norm(config["norm_topk_prob"])
        config |= {"num_key_value_heads": 1, "head_dim": None}
    if "linear_value_head_dim" in config:
        width_of_all = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        writer.add_ssm_inner_size(width_of_all)
        writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    if name == "olmo":
        config["layer_norm_eps"] = 1e-5
    for key, add in _TABLE["metadata"].items():
        value = rope.get(key, config.get(key))
        if value is not None and (name, key) != ("gemma3", "attn_logit_softcapping"):
            getattr(writer, add)(value)
    if config.get("head_dim"):
        writer.add_key_length(width)
        writer.add_value_length(width)
    if name in _TABLE["with_rotary_dim"]:
        share = rope.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int(width * share))
    if name == "phi3" or config["model_type"] in _TABLE["sliding"]:
        writer.add_sliding_window(config["sliding_window"] or 0)
    if config["model_type"] in ("gemma3_text", "olmo3", "exaone4"):
        writer.add_sliding_window_pattern([t == "sliding_attention" for t in config["layer_types"]])
    _add_scaling(writer, config, rope)
    for key, value in metadata.items():
        writer.kv_data[0].pop(key.replace("__", "."), None)
        if value is None:
            continue
        add = {
            **{str: writer.add_string, bool: writer.add_bool},
            **{int: writer.add_uint32, float: writer.add_float32},
        }
        (writer.add_array if isinstance(value, list) else add[type(value)])(
            key.replace("__", "."), value
        )
    arch = next(a for a, own in gguf.MODEL_ARCH_NAMES.items() if own == name)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    stacked: dict[str, list[NDArray[Any]]] = {}
    for stored, weight in (case.weights() if weights is None else weights).items():
        for theirs, own in _TABLE["spellings"].items():
            stored = stored.replace(theirs, own)
        if "linear_attn" in stored:
            parts = _of_delta_net(stored, weight, config, tiled=name != "qwen3next")
            stacked |= {part: [values] for part, values in parts.items()}
            continue
        if "input_linear" in stored:
            gate, up = np.split(weight, 2, axis=1)
            stacked |= {stored.replace("input_linear", "mlp.experts.gate_proj"): [gate]}
            stacked |= {stored.replace("input_linear", "mlp.experts.up_proj"): [up]}
            continue
        if "experts.gate_up_proj" in stored:
            half = weight.shape[-1] // 2
            pairs = {"gpt-oss": (weight[..., ::2], weight[..., 1::2])}
            halves = pairs.get(name, (weight[..., :half], weight[..., half:]))
            for part, columns in zip(("gate_proj", "up_proj"), halves, strict=True):
                own = stored.replace("gate_up_proj", part)
                stacked |= _of_experts(own, columns)
            continue
        if "experts.down_proj" in stored and name in ("gpt-oss", "llama4"):
            stacked |= _of_experts(stored, weight)
            continue
        if "kv_b_proj" in stored:
            parts = weight.reshape(heads, -1, weight.shape[1])
            keys, values = np.split(parts, [config["qk_nope_head_dim"]], axis=1)
            stacked |= {stored.replace("kv_b", "k_b"): [keys.swapaxes(1, 2)]}
            stacked |= {stored.replace("kv_b", "v_b"): [values]}
            continue
        stacked.setdefault(_STACKED.sub(r"\1", stored).replace(".norms", ""), []).append(weight)
    for stored, parts in stacked.items():
        weight = np.stack(parts) if len(parts) > 1 else parts[0]
        if name in _TABLE["permuted"] and ".q_proj." in stored:
            weight = _permuted(weight, heads)
        if name in _TABLE["permuted"] and ".k_proj." in stored:
            weight = _permuted(weight, config["num_key_value_heads"])
        if "query_key_value" in stored:
            rest = weight.shape[1:]
            groups = config.get("num_key_value_heads") or heads
            own = weight.reshape(groups, -1, width, *rest)
            qkv = (own[:, :-2], own[:, -2], own[:, -1])
            weight = np.concatenate([part.reshape(-1, *rest) for part in qkv])
        if name in _TABLE["plus_one"] and stored.endswith("norm.weight") and "linear" not in stored:
            weight = weight + np.float32(1)
        own = names.get_name(stored, try_suffixes=(".weight", ".bias")) or stored
        type_ = kind if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(own, gguf.quantize(weight, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _of_experts(name: str, weight: NDArray[Any]) -> dict[str, list[NDArray[Any]]]:
    """gpt-oss's, which has the inputs first."""
    if name.endswith("_bias"):
        return {name.replace("_bias", ".bias"): [weight]}
    return {f"{name}.weight": [weight.swapaxes(1, 2)]}


def _of_delta_net(stored: str, weight: NDArray[Any], config: Any, *, tiled: bool) -> Tensors:
    """Qwen3-Next's, with its projections taken apart, and Qwen 3.5's, with value heads in tiles."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    width, value_width = config["linear_key_head_dim"], config["linear_value_head_dim"]
    if stored.endswith("A_log"):
        weight = -np.exp(weight)
    if "conv1d" in stored:
        weight = weight[:, 0]
    if "in_proj_qkvz" in stored:
        by_head = weight.reshape(keys, -1, weight.shape[1])
        ends = np.cumsum([width, width, values // keys * value_width])
        q, k, v, z = (x.reshape(-1, x.shape[2]) for x in np.split(by_head, ends, axis=1))
        both = {"qkv": np.concatenate([q, k, v]), "z": z}
        return {stored.replace("qkvz", part): rows for part, rows in both.items()}
    if not tiled or "linear_attn.norm" in stored:
        return {stored: weight}
    heads = np.arange(values).reshape(keys, -1).T.ravel()  # the first of each key head, …
    each = (
        1 if weight.ndim == 1 or ".in_proj_a" in stored or ".in_proj_b" in stored else value_width
    )
    order = (heads[:, None] * each + np.arange(each)).ravel()
    if "out_proj" in stored:
        return {stored: weight[:, order]}
    if "qkv" in stored or "conv1d" in stored:
        order = np.concatenate([np.arange(2 * keys * width), 2 * keys * width + order])
    return {stored: weight[order]}


def _permuted(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    rest = weight.shape[1:]
    return weight.reshape(heads, 2, -1, *rest).swapaxes(1, 2).reshape(weight.shape)


def _add_scaling(writer: gguf.GGUFWriter, config: Any, rope: Any) -> None:
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "longrope":
        longest, length = (
            config["max_position_embeddings"],
            rope["original_max_position_embeddings"],
        )
        default = np.sqrt(1 + np.log(longest / length) / np.log(length))
        writer.add_rope_scaling_attn_factors(rope.get("attention_factor", float(default)))
        for name in ("long", "short"):
            factors = np.array(rope[f"{name}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors)
    if kind == "llama3":
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        width = int(width * rope.get("partial_rotary_factor", 1.0))
        waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, width, 2) / width)
        turns = rope["original_max_position_embeddings"] / waves
        low, high, factor = (rope[f"{x}factor"] for x in ("low_freq_", "high_freq_", ""))
        kept = turns > low if high == low else np.clip((turns - low) / (high - low), 0, 1)
        factors = (1 / ((1 - kept) / factor + kept)).astype(np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
