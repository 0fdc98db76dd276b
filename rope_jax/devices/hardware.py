"""The devices that JAX found: their kind and their memory."""

import math
import os

import jax


def device_bytes() -> float:
    """The memory of a device; of a CPU that of its host, which its devices share."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (device.memory_stats() or {}).get("bytes_limit", math.inf)


def device_line(dtype: str) -> str:
    """Name the devices that compute, and the dtype they compute in."""
    devices = jax.devices()
    return f"{len(devices)} × {devices[0].device_kind} ({devices[0].platform}), {dtype}"
