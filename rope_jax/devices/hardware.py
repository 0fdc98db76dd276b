"""The devices that JAX found: their kind and their memory."""

import math
import os
from pathlib import Path

import jax

# A container's memory limit under cgroup v2 and v1.
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def device_bytes() -> float:
    """Memory of one device in bytes; for a CPU, the host's, which all its devices share."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return float(_host_bytes())
    return float((device.memory_stats() or {}).get("bytes_limit", math.inf))


def device_line(dtype: str) -> str:
    """Return one line that names the devices and the dtype they compute in."""
    devices = jax.devices()
    return f"{len(devices)} × {devices[0].device_kind} ({devices[0].platform}), {dtype}"


def _host_bytes() -> int:
    """Physical memory, or the container's limit if that is lower."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *(limit for path in _CGROUP_LIMITS if (limit := _limit(path)))])


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit
