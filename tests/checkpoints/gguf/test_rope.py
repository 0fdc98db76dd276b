"""The keys and tensors for llama.cpp rotate there as the scaling does here."""

import math
from typing import Any

import numpy as np
import pytest

from rope_jax.checkpoints.gguf.rope import Rope, express
from rope_jax.rope import RotaryGeometry, parse_scaling

GEOMETRY = RotaryGeometry(64, 500_000.0, 8192)
FACTORS = [1.0 + i / 8 for i in range(32)]


def in_llama_cpp(rope: Rope, length: int) -> tuple[Any, float]:
    """What llama.cpp computes: its `llama_context` and `ggml_rope_cache_init`, in float64.

    length: of its context.
    """
    keys, tensors = {k.removeprefix("rope."): x for k, x in rope.keys.items()}, rope.tensors
    base, s = keys["freq_base"], keys.get("scaling.factor", 1.0)
    original = keys.get("scaling.original_context_length", length)
    chosen = "long" if length > original else "short"
    divisors = tensors.get("rope_freqs.weight", tensors.get(f"rope_factors_{chosen}.weight", 1.0))
    count = GEOMETRY.rotary_dim
    theta = base ** (-np.arange(0, count, 2) / count) / divisors
    m = keys.get("scaling.attn_factor", 1.0)
    if keys["scaling.type"] != "yarn":
        return theta / (1.0 if keys["scaling.type"] == "none" else s), m
    fast, slow = (keys.get(f"scaling.yarn_beta_{x}", n) for x, n in (("fast", 32), ("slow", 1)))
    ends = (
        count * math.log(original / (n * 2 * math.pi)) / 2 / math.log(base) for n in (fast, slow)
    )
    low, high = max(math.floor(next(ends)), 0), min(math.ceil(next(ends)), count - 1)
    kept = 1 - np.clip((np.arange(count // 2) - low) / max(0.001, high - low), 0, 1)
    return theta / s * (1 - kept) + theta * kept, m * (0.1 * math.log(s) + 1)


@pytest.mark.parametrize(
    ("scaling", "kind"),
    [
        ({"type": "none"}, "none"),
        ({"type": "pi", "factor": 4.0}, "linear"),
        ({"type": "ntk", "factor": 4.0}, "none"),
        ({"type": "abf", "base": 3e6}, "none"),
        ({"type": "yarn", "factor": 4.0}, "yarn"),
        ({"type": "yarn", "factor": 4.0, "attention_factor": 1.5}, "yarn"),
        ({"type": "ntk_by_parts", "factor": 4.0}, "yarn"),
        ({"type": "explicit", "factors": [2.0] * 32, "attention_factor": 1.1}, "linear"),
    ],
)
def test_keys_that_all_architectures_read(scaling: dict[str, Any], kind: str) -> None:
    rope = express(GEOMETRY, parse_scaling(scaling), ())
    assert rope.keys["rope.scaling.type"] == kind
    assert not rope.tensors
    assert_same(rope, scaling, 32768)


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "llama3"},
        {"type": "yarn", "factor": 4.0, "truncate": False},
        {"type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0},
        {"type": "p_rope", "p": 0.75},
        {"type": "drope"},
        {"type": "explicit", "factors": FACTORS, "attention_factor": 1.1},
        {"type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS, "factor": 2.0},
    ],
)
def test_other_frequencies_are_a_tensor(scaling: dict[str, Any]) -> None:
    assert_same(express(GEOMETRY, parse_scaling(scaling), ["rope_freqs"]), scaling, 32768)
    with pytest.raises(ValueError, match=f"the frequencies of {scaling['type']} are none that a"):
        express(GEOMETRY, parse_scaling(scaling), ["rope_factors"])


def test_betas_are_keys_where_they_are_read() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0}
    rope = express(GEOMETRY, parse_scaling(scaling), ["yarn_betas", "rope_freqs"])
    assert not rope.tensors
    assert_same(rope, scaling, 32768)


def test_longrope_has_a_list_for_each_length() -> None:
    lists = {"short_factor": FACTORS, "long_factor": FACTORS[::-1], "factor": 4.0}
    scaling = {"type": "longrope"} | lists
    rope = express(GEOMETRY, parse_scaling(scaling), ["rope_factors", "rope_freqs"])
    for length in (8192, 8193):
        assert_same(rope, scaling, length)


@pytest.mark.parametrize("kind", ["dynamic_ntk", "dynamic_yarn", "longrope"])
def test_what_follows_the_length_is_refused(kind: str) -> None:
    lists = {"short_factor": FACTORS, "long_factor": FACTORS[::-1], "factor": 4.0}
    scaling = parse_scaling({"type": kind} | (lists if kind == "longrope" else {}))
    with pytest.raises(ValueError, match=f"{kind} follows the text's length, which llama.cpp "):
        express(GEOMETRY, scaling, ["rope_freqs", "yarn_betas"])


def assert_same(rope: Rope, scaling: dict[str, Any], length: int) -> None:
    theta, m = in_llama_cpp(rope, length)
    made = parse_scaling(scaling).frequencies(GEOMETRY, length)
    np.testing.assert_allclose(theta, made.exact, rtol=1e-6, atol=1e-25)
    np.testing.assert_allclose(m, made.attention_factor, rtol=1e-6)
