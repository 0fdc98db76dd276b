"""Peak FLOP/s of the devices, the reference for MFU."""

import time

import jax
import jax.numpy as jnp

# Dense bfloat16 peak of one device in FLOP/s, from the vendors' data sheets.
_DATASHEET = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
}


def peak_flops() -> tuple[float, str]:
    """Return (FLOP/s of all devices together, source of the figure).

    The source is the data sheet of a known device. For any other, the speed is measured as the best
    of several float32 matrix products, so that utilization means something on a CPU too.
    """
    devices = jax.devices()
    for name, flops in _DATASHEET.items():
        if devices[0].device_kind.startswith(name):
            return flops * len(devices), "data sheet, bfloat16"
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
