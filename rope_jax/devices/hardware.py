"""The devices that JAX found, or that a program is planned for, in words."""

from collections.abc import Sequence
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
