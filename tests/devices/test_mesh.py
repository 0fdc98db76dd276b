"""How a mesh divides devices and batches, and how much memory a device has."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from rope_jax.config.devices import MeshConfig
from rope_jax.config.training import StageConfig
from rope_jax.devices.hardware import device_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError


def test_a_mesh_must_use_all_devices() -> None:
    with pytest.raises(UserError, match=r"mesh: data 1 × fsdp 3 is 3 devices, and there are 1"):
        Placement(MeshConfig(fsdp=3))


def test_windows_that_devices_cannot_divide_evenly_are_refused() -> None:
    three = StageConfig(steps=1, seq_len=8, batch_size=3)
    placement = Placement(MeshConfig())
    placement.check_stages((three,))
    placement.mesh = SimpleNamespace(size=2)  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"stages\[0\].batch_size: 3 windows at a time cannot be"):
        placement.check_stages((three,))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 2**40),
        ({"v2": f"{2**30}\n"}, 2**30),
        ({"v2": "max\n"}, 2**40),
        ({"v1": f"{2**31}"}, 2**31),
        ({"v1": f"{2**63 - 4096}"}, 2**40),  # version 1 without a limit
    ],
)
def test_the_memory_of_a_cpu_is_at_most_that_of_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    limits = (tmp_path / "v2", tmp_path / "v1")
    monkeypatch.setattr("rope_jax.devices.hardware._CGROUP_LIMITS", limits)
    sizes = {"SC_PHYS_PAGES": 2**28, "SC_PAGE_SIZE": 2**12}
    monkeypatch.setattr("os.sysconf", sizes.__getitem__)
    assert device_bytes() == expected
