"""The devices that JAX found, in words."""

import jax


def device_line(dtype: str) -> str:
    """Return one line that names the devices and the dtype they compute in."""
    devices = jax.devices()
    kind, platform = devices[0].device_kind, devices[0].platform
    name = kind if kind == platform else f"{kind} ({platform})"
    return f"{len(devices)} × {name}, {dtype}"
