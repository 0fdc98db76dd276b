"""Devices in words and figures: those that JAX found, or that a program is planned for."""

import os
import timeit
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rope_jax.devices.targets import chip_of

# The part of `peak_flops` that models reach: of an accelerator's data sheet, and of what a CPU was
# measured to do. On two cores, SmolLM2-135M reads 2,048 to 8,192 tokens at 0.9 to 1.1 of it.
_REACHED_OF_DATA_SHEET, _REACHED_OF_MEASURED = 0.35, 0.9
_NOMINAL_FLOPS_OF_CORE = 45e9


def device_line(numbers: str, devices: Sequence[Any] | None = None) -> str:
    """Return one line that names the devices, by default all, and the dtype they compute in."""
    devices = jax.devices() if devices is None else devices
    kind, platform = devices[0].device_kind, devices[0].platform
    name = kind if kind == platform else f"{kind} ({platform})"
    return f"{len(devices)} × {name}, {numbers}"


def peak_flops(devices: Sequence[Any] | None = None) -> tuple[float, str]:
    """Return (FLOP/s of all devices together, source of the figure): the reference for MFU.

    For a device without a known data sheet, they are measured with float32 matrix products, so that
    utilization means something on a CPU too.
    """
    devices = jax.devices() if devices is None else devices
    chip = chip_of(devices[0].device_kind)
    if chip is not None:
        return chip.flops * len(devices), "data sheet, bfloat16"
    size = 1024
    x = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    multiply(x, x).block_until_ready()
    seconds = min(timeit.repeat(lambda: multiply(x, x).block_until_ready(), number=1, repeat=5))
    return 2 * size**3 / seconds * len(devices), f"measured, {size}³ float32 matmul"


def reached_flops(peak: float) -> float:
    """Return the FLOP/s that a model reaches, roughly, of all devices' `peak_flops`."""
    is_known = chip_of(jax.devices()[0].device_kind) is not None
    return peak * (_REACHED_OF_DATA_SHEET if is_known else _REACHED_OF_MEASURED)


def nominal_flops() -> float:
    """Return `reached_flops` without measuring it: the same each time and in every process."""
    chip = chip_of(jax.devices()[0].device_kind)
    if chip is not None:
        return chip.flops * len(jax.devices()) * _REACHED_OF_DATA_SHEET
    return _NOMINAL_FLOPS_OF_CORE * (os.cpu_count() or 1)
