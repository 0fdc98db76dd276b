"""Targets: how they are read, their figures, and devices that only a compiler can use."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rope_jax.devices import memory
from rope_jax.devices.memory import device_bytes
from rope_jax.devices.targets import CHIPS, chip_of, parse_target
from rope_jax.errors import UserError

ROOT = Path(__file__).parents[2]


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
    with pytest.raises(UserError, match=rf"^target: {text}: .*pip install 'jax\[{extra}\]'"):
        parse_target(text).devices()


def test_a_device_that_is_not_here_has_the_memory_of_its_data_sheet():
    def memory_stats():
        raise memory.jax.errors.JaxRuntimeError("INVALID_ARGUMENT: only for addressable devices")

    device = SimpleNamespace(device_kind="TPU v5 lite", platform="tpu", memory_stats=memory_stats)
    assert device_bytes(device) == int(15.75 * 2**30)


PROGRAM = """
import json, sys
from rope_jax.devices.targets import parse_target, prepare
prepare()
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from rope_jax.config.devices import MeshConfig
from rope_jax.devices.memory import device_bytes, program_bytes
from rope_jax.devices.mesh import Placement

target = parse_target(sys.argv[1])
placement = Placement(MeshConfig(), target.devices())
x = placement.abstract_rows((1024, 1024), jnp.float32)
compiled = jax.jit(jnp.sum, out_shardings=placement.replicated).lower(x).compile()
print(json.dumps({
    "count": target.count == placement.mesh.size,
    "kind": placement.device.device_kind.startswith(target.chip.kinds),
    "platform": placement.platform == target.chip.platform,
    "memory": device_bytes(placement.device) == target.chip.usable,
    "bytes": program_bytes(compiled, device=placement.device),
}))
"""


@pytest.mark.parametrize(
    ("text", "module"), [("v5e:2x2", "libtpu"), ("h100:8", "jax_plugins.xla_cuda12")]
)
def test_a_program_is_compiled_for_a_target(text, module):
    pytest.importorskip(module, reason=f"the compiler of {text} is not installed")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", PROGRAM, text]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert all(found[name] for name in ("count", "kind", "platform", "memory"))
    devices = parse_target(text).count
    rows = 4 * 1024 * 1024 // devices
    assert rows <= found["bytes"] < 1.1 * rows + 2**16
