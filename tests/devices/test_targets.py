"""Targets: how they are read, their figures, and devices that only a compiler can use."""

import importlib.util
from types import SimpleNamespace

import pytest

from rope_jax.devices import memory
from rope_jax.devices.memory import device_bytes
from rope_jax.devices.targets import CHIPS, chip_of, parse_target
from rope_jax.errors import UserError


@pytest.mark.parametrize(
    ("text", "full", "shape"),
    [
        ("v5e", "v5e:1x1", (1, 1)),
        ("v5p", "v5p:2x2x1", (2, 2, 1)),
        ("V6E:2x4", "v6e:2x4", (2, 4)),
        ("h200", "h200:1", (1, 1)),
        ("b200:32", "b200:32", (4, 8)),
    ],
)
def test_a_target_is_a_chip_and_the_shape_of_a_slice(text, full, shape):
    target = parse_target(text)
    assert (target.text, target.shape) == (full, shape)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5", r"'v5' is not one of v4, v5e, .*; did you mean v5e or v5p\?; as in v5e:4x4"),
        ("tpu", r"'tpu' is not one of .*; as in v5e:4x4 or h100:8$"),
        ("v5e:16", r"v5e:16: a slice has 2 axes, as in v5e:4x4$"),
        ("v5p:4x4", r"v5p:4x4: a slice has 3 axes, as in v5p:2x2x4$"),
        ("h100:2x4", r"h100:2x4: it is a number of GPUs, as in h100:8$"),
        ("h100:12", r"h100:12: a host has 8 GPUs, so more are a multiple of that$"),
        ("h100:0", r"h100:0: it is a number of GPUs"),
        ("v5e:", r"v5e:: a slice has 2 axes"),
    ],
)
def test_a_target_that_does_not_exist_is_answered_with_those_that_do(text, message):
    with pytest.raises(UserError, match=f"^target: {message}"):
        parse_target(text)


def test_jax_names_of_devices_belong_to_chips():
    kinds = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p"}
    kinds |= {"NVIDIA H100 80GB HBM3": "h100", "cpu": None, "NVIDIA GeForce RTX 3090": None}
    for kind, name in kinds.items():
        assert chip_of(kind) is CHIPS.get(name)


def test_jax_uses_three_quarters_of_a_gpu_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert CHIPS["h100"].usable == 84_942_979_072 * 3 // 4
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert CHIPS["h100"].usable == 84_942_979_072 // 2
    assert CHIPS["v5e"].usable == int(15.75 * 2**30)


@pytest.mark.parametrize(("text", "extra"), [("v5e:2x2", "tpu"), ("h100:8", "cuda12")])
def test_without_its_compiler_a_line_says_what_to_install(text, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"^target: {text}.*pip install 'rope-jax\[{extra}\]'"):
        parse_target(text).devices()


def test_a_device_that_is_not_here_has_the_memory_of_its_data_sheet():
    def memory_stats():
        raise memory.jax.errors.JaxRuntimeError("INVALID_ARGUMENT: only for addressable devices")

    device = SimpleNamespace(device_kind="TPU v5 lite", platform="tpu", memory_stats=memory_stats)
    assert device_bytes(device) == int(15.75 * 2**30)
