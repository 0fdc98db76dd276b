"""Peak FLOP/s of the devices, the reference for MFU."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rope_jax.devices.targets import chip_of


def peak_flops(devices: Sequence[Any] | None = None) -> tuple[float, str]:
    """Return (FLOP/s of all devices together, source of the figure).

    The source is the data sheet of a known device. For any other, the speed is measured as the best
    of several float32 matrix products, so that utilization means something on a CPU too.

    devices: None: those that JAX found.
    """
    devices = jax.devices() if devices is None else devices
    chip = chip_of(devices[0].device_kind)
    if chip is not None:
        return chip.flops * len(devices), "data sheet, bfloat16"
    size = 1024
    x = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    multiply(x, x).block_until_ready()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        multiply(x, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds) * len(devices), f"measured, {size}³ float32 matmul"
