"""What each runtime computes from its settings, by its formulas, is what was measured."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rope_jax.checkpoints.reading import read_description
from rope_jax.config.load import validate
from rope_jax.config.strategy import Strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.rope import RotaryLayers, Scaling, parse_scaling
from rope_jax.rope.hf import layers_from_hf
from rope_jax.rope.hf.read import LENGTH
from rope_jax.rope.strategies.over import over
from rope_jax.runtimes.settings import _OWN_BASE, runtime_settings
from tests.checkpoints.folders import config_of, golden_case
from tests.training.conftest import tiny

ENTRIES: dict[str, dict[str, Any]] = {
    "none": {"type": "none"},
    "pi": {"type": "pi", "factor": 4.0},
    "ntk": {"type": "ntk", "factor": 4.0},
    "abf": {"type": "abf", "base": 1e6},
    "yarn": {"type": "yarn", "factor": 4.0},
    "yarn, other m": {"type": "yarn", "factor": 4.0, "beta_fast": 16.0, "attention_factor": 1.5},
    "yarn, not truncated": {"type": "yarn", "factor": 4.0, "truncate": False},
    "by parts": {"type": "ntk_by_parts", "factor": 4.0},
    "resonance": {"type": "resonance", "inner": {"type": "yarn", "factor": 4.0}},
    "dynamic": {"type": "dynamic_ntk"},
}
# Entries that act on the trained frequencies as well.
OVER = "pi", "ntk", "yarn"


def entries(config: TrainingConfig) -> Iterator[tuple[str, Scaling]]:
    """Yield the scalings to express, by name."""
    trained = config.trained(0)
    yield "trained", trained.scaling
    for name, raw in ENTRIES.items():
        yield name, parse_scaling(raw)
    for name in OVER:
        yield f"over {name}", over(parse_scaling(ENTRIES[name]), trained.scaling, trained.window)


def settings(
    config: TrainingConfig, scaling: Scaling, length: int, model_type: str | None = None
) -> dict[str, Any]:
    made = runtime_settings(
        config, Strategy(scaling=scaling), config.trained(0), length, model_type
    )
    return {each.name: each for each in made}


def frequencies(
    layers: RotaryLayers, scaling: Scaling, length: int
) -> list[tuple[np.ndarray, float]]:
    each = (layers.for_layer(i, scaling) for i in range(layers.count))
    made = [scaling.frequencies(geometry, length) for geometry, scaling in each]
    return [(each.exact, float(each.attention_factor)) for each in made]


def assert_same(found: list[tuple[np.ndarray, float]], wanted: Any) -> None:
    for (a, m), (b, n) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6)
        assert m == pytest.approx(n, rel=2e-6)


CASES = [
    *((family, "default") for family in ("cohere2", "exaone4", "gemma3_text", "gpt_neox", "phi3")),
    *(("llama", x) for x in ("linear", "dynamic", "yarn", "llama3", "longrope", "yarn_settings")),
    *(("gemma3_text", x) for x in ("linear", "yarn", "longrope", "proportional")),
    *(("gemma2", "yarn"), ("gpt_oss", "yarn"), ("olmo3", "yarn"), ("qwen2", "yarn")),
    *(("phi3", "longrope"), ("phi3", "partial_longrope"), ("smollm3", "llama3")),
    *(("exaone4", "llama3"), ("deepseek_v2", "lite"), ("glm4", "yarn")),
]


@pytest.mark.parametrize(("family", "case"), CASES)
def test_settings_give_the_frequencies(family: str, case: str) -> None:
    given = json.loads(golden_case(family, case).config)
    config = config_of(read_description(given, "config.json"))
    length, layers = 4 * config.geometry.train_length, config.rotary_layers
    for name, scaling in entries(config):
        wanted = frequencies(layers, scaling, length)
        made = settings(config, scaling, length, given["model_type"])
        assert all(each.settings or each.note for each in made.values()), name
        if keys := made["transformers"].settings:
            assert_same(frequencies(*layers_from_hf(given | keys), length), wanted)
        if overrides := made["vLLM"].settings.get("--hf-overrides"):
            for is_old in (True, False):
                assert_same(vllm(given, overrides, length, is_old=is_old), wanted)
        if flags := made["llama.cpp"].settings:
            assert flags["-c"] == length
            assert_same(llama_cpp(config, given["model_type"], flags), wanted)


def test_flags_replace_the_base_that_a_file_holds(tmp_path: Path) -> None:
    raw = tiny(tmp_path).model_dump(mode="json")
    raw["rope"]["scaling"] = {"type": "abf", "base": 5e5}
    config = validate(TrainingConfig, raw | {"stages": raw["stages"][:1]}, "test")
    flags = settings(config, parse_scaling({"type": "pi", "factor": 2.0}), 32)["llama.cpp"].settings
    wanted = {"--rope-scaling": "linear", "--rope-scale": 2.0, "--rope-freq-base": 10000.0}
    assert flags == {"-c": 32} | wanted
    assert settings(config, config.rope.scaling, 32)["llama.cpp"].settings == {"-c": 32}


@pytest.mark.parametrize(
    ("family", "raw", "lacks"),
    [
        ("llama", {"type": "cope"}, "cannot express it: type: cope has no form in"),
        ("llama", {"type": "dynamic_pi"}, "cannot express it: type: dynamic_pi has no form"),
        ("llama", {"type": "none", "query_scale": {"type": "logn"}}, "logn has no form in"),
        ("cohere", {"type": "evq_cosh"}, "has longrope for pairs of dimensions i and"),
        ("gemma2", {"type": "pi", "factor": 2.0}, "has no flags for sliding layers"),
        (
            "gemma3_text",
            {"type": "yarn", "factor": 4.0, "truncate": False},
            "cannot express it: no YaRN without truncate",
        ),
    ],
)
def test_what_runtimes_lack(family: str, raw: dict[str, Any], lacks: str) -> None:
    given = json.loads(golden_case(family, "default").config)
    config = config_of(read_description(given, "config.json"))
    made = settings(config, parse_scaling(raw), 64, family)
    assert any(lacks in each.note for each in made.values() if not each.settings)


def vllm(
    config: dict[str, Any], overrides: dict[str, Any], length: int, *, is_old: bool
) -> list[tuple[np.ndarray, float]]:
    """What vLLM computes: the formulas of transformers, but for m (`get_rope`).

    is_old: a version that ignores attention_factor in YaRN.
    """
    rope, longest = (
        copy.deepcopy(overrides["rope_parameters"]),
        overrides["max_position_embeddings"],
    )
    parts = [rope] if "rope_type" in rope else list(rope.values())
    for part in parts:
        kind, factor = part["rope_type"], part.get("factor", 1.0)
        if kind == "yarn":
            is_deepseek = config["model_type"].startswith("deepseek")
            scales = part.get("mscale", 1.0), part.get("mscale_all_dim", 0.0)
            usual, divisor = (0.1 * x * math.log(factor) + 1 for x in scales)
            times = part.pop("attn_factor", 1.0)
            if is_deepseek:
                part["attention_factor"] = usual / divisor * times
            elif is_old:
                part["attention_factor"] = (0.1 * math.log(factor) + 1) * times
        if kind == "longrope":
            part["attention_factor"] = part.pop("long_mscale")
            assert part.pop("short_mscale") == part["attention_factor"]
        cached = {"linear": longest * factor, "yarn": factor * part.get(LENGTH, 0)}
        assert cached.get(kind, longest) >= length
    keys = {"rope_parameters": rope, LENGTH: parts[0].get(LENGTH)}
    return frequencies(*layers_from_hf(config | keys), length)


def llama_cpp(
    config: TrainingConfig, model_type: str, flags: dict[str, Any]
) -> list[tuple[np.ndarray, float]]:
    """What llama.cpp computes with flags and a GGUF file of a model (llama_context, rope_yarn)."""
    layers, trained = config.rotary_layers, config.trained(0).scaling
    own = frequencies(layers, trained, flags["-c"])
    windows = [element.sliding_window or element.attention_chunk for element in config.pattern]
    made = []
    for i in range(layers.count):
        geometry, scaling = layers.for_layer(i, trained)
        (inv_freq, m), slides = own[i], windows[i % len(windows)] is not None
        if (slides and model_type in _OWN_BASE) or not inv_freq.any() or len(flags) == 1:
            made.append(own[i])
            continue
        d, base = geometry.rotary_dim, flags.get("--rope-freq-base", geometry.base)
        theta = base ** (-np.arange(0, d, 2) / d)
        in_file = 1.0
        if scaling.type in ("llama3", "longrope"):  # rope_freqs.weight, attn_factor
            theta *= inv_freq / geometry.inv_freq()
            in_file = m
        s = flags.get("--rope-scale", 1.0)
        if flags["--rope-scaling"] != "yarn":
            made.append((theta / s, in_file * flags.get("--yarn-attn-factor", 1.0)))
            continue
        length = flags["--yarn-orig-ctx"]
        low, high = (
            d
            * math.log(length / (2 * math.pi * flags.get(f"--yarn-beta-{end}", default)))
            / 2
            / math.log(base)
            for end, default in (("fast", 32), ("slow", 1))
        )
        low, high = max(0, math.floor(low)), min(d - 1, math.ceil(high))
        ramp = 1 - np.clip((np.arange(d // 2) - low) / max(0.001, high - low), 0, 1)
        made.append((theta / s * (1 - ramp) + theta * ramp, in_file * (0.1 * math.log(s) + 1)))
    return made
