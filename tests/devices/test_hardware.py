"""The peak speed of known devices, and of this one."""

from types import SimpleNamespace

import pytest

from rope_jax.devices.hardware import peak_flops


@pytest.mark.parametrize(
    ("kind", "flops"),
    [("NVIDIA H100 80GB HBM3", 989e12), ("TPU v5 lite", 197e12), ("TPU v5p", 459e12)],
)
def test_known_devices_have_the_peak_of_their_data_sheet(kind, flops, monkeypatch):
    devices = [SimpleNamespace(device_kind=kind)] * 4
    monkeypatch.setattr("jax.devices", lambda: devices)
    assert peak_flops() == (4 * flops, "data sheet, bfloat16")


def test_the_peak_of_an_unknown_device_is_measured():
    flops, source = peak_flops()
    assert source == "measured, 1024³ float32 matmul"
    assert 1e9 < flops < 1e14
