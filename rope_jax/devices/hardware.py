"""Devices in words and figures, and how programs are compiled for them."""

import functools
import os
import timeit
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rope_jax.devices.chips import chip_of

# The part of `peak_flops` that models reach: of an accelerator's data sheet, and of what a CPU was
# measured to do. On two cores, SmolLM2-135M reads 2,048 to 8,192 tokens at 0.9 to 1.1 of it.
_REACHED_OF_DATA_SHEET, _REACHED_OF_MEASURED = 0.35, 0.9
_NOMINAL_FLOPS_OF_CORE = 45e9
_MEASURED_SIZE = 1024
# XLA's default on a CPU is 3, with which LLVM takes longer, and makes no faster programs:
# docs/performance.md. What accelerators' compilers make of the number has not been measured.
_ON_CPU = {"xla_backend_optimization_level": 2}


def device_line(numbers: str, devices: Sequence[jax.Device] | None = None) -> str:
    """Return one line that names the devices, by default all, and the dtype they compute in."""
    devices = jax.devices() if devices is None else devices
    name, platform = devices[0].device_kind, devices[0].platform
    if name != platform:
        name = f"{name} ({platform})"
    return f"{len(devices)} × {name}, {numbers}"


def peak_flops(devices: Sequence[jax.Device] | None = None) -> tuple[float, str]:
    """Return (FLOP/s of all devices together, source of the figure): the reference for MFU.

    For a device without a known data sheet, they are measured with float32 matrix products, so that
    utilization means something on a CPU too.
    """
    devices = jax.devices() if devices is None else devices
    chip = chip_of(devices[0].device_kind)
    if chip is not None:
        return chip.flops * len(devices), "data sheet, bfloat16"
    measured = _measured_flops() * len(devices)
    return measured, f"measured, {_MEASURED_SIZE}³ float32 matmul"


@functools.cache  # all estimates of a process are then of one speed
def _measured_flops() -> float:
    size = _MEASURED_SIZE
    x = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    multiply(x, x).block_until_ready()
    seconds = min(timeit.repeat(lambda: multiply(x, x).block_until_ready(), number=1, repeat=5))
    return 2 * size**3 / seconds


def reached_flops(peak: float, devices: Sequence[jax.Device] | None = None) -> float:
    """Return the FLOP/s that a model reaches, roughly, of `peak_flops` of these devices."""
    devices = jax.devices() if devices is None else devices
    is_known = chip_of(devices[0].device_kind) is not None
    return peak * (_REACHED_OF_DATA_SHEET if is_known else _REACHED_OF_MEASURED)


def nominal_flops() -> float:
    """Return `reached_flops` without measuring it: the same each time and in every process."""
    if chip_of(jax.devices()[0].device_kind) is not None:
        return reached_flops(peak_flops()[0])
    return _NOMINAL_FLOPS_OF_CORE * (os.cpu_count() or 1)


def compiler_options(platform: str) -> dict[str, Any] | None:
    """Return what `jax.jit` takes as `compiler_options` on "cpu", "gpu" or "tpu".

    None where XLA_FLAGS or JAX's configuration says how much to optimize: these would override it.
    """
    chosen = any(name in os.environ.get("XLA_FLAGS", "") for name in _ON_CPU)
    chosen |= jax.config.values["jax_disable_most_optimizations"]
    return _ON_CPU if platform == "cpu" and not chosen else None


def compiled(function: Any, first: object, *others: object) -> jax.stages.Compiled:
    """Compile a jitted function for arguments of these shapes, on the devices of the first one."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(first))
    devices = {device for sharding in shardings if sharding for device in sharding.device_set}
    platform = devices.pop().platform if devices else jax.default_backend()
    lowered = function.lower(first, *others)
    program: jax.stages.Compiled = lowered.compile(compiler_options=compiler_options(platform))
    return program
