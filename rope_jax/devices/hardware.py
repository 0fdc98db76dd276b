"""The devices that JAX found, or that a program is planned for, in words."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax


def device_line(numbers: str, devices: Sequence[Any] | None = None) -> str:
    """Return one line that names the devices and what they compute with, such as a dtype.

    devices: None: those that JAX found.
    """
    devices = jax.devices() if devices is None else devices
    kind, platform = devices[0].device_kind, devices[0].platform
    name = kind if kind == platform else f"{kind} ({platform})"
    return f"{len(devices)} × {name}, {numbers}"


def has_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's CPU has AMX, whose products of bfloat16 are its fastest.

    cpuinfo: what Linux says about the CPU; without such a file, the answer is no.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        text = cpuinfo.read_text()
    except OSError:
        return False
    return any("amx_bf16" in line.split() for line in text.splitlines() if line[:5] == "flags")
