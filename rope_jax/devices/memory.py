"""How much memory a device has."""

import math
import os

import jax


def device_bytes() -> float:
    """The memory of a device; of a CPU that of its host, which its devices share."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (device.memory_stats() or {}).get("bytes_limit", math.inf)
