"""How a mesh divides devices and batches."""

import pytest

from rope_jax.config.devices import MeshConfig
from rope_jax.config.sections import StageConfig
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError


def test_a_mesh_must_use_all_devices() -> None:
    with pytest.raises(UserError, match=r"mesh: fsdp 3 takes 3 devices, and there is 1"):
        Placement(MeshConfig(fsdp=3))


def test_windows_that_devices_cannot_divide_evenly_are_refused() -> None:
    three = StageConfig(steps=1, seq_len=8, batch_size=3)
    placement = Placement(MeshConfig())
    placement.check_stages((three,))
    placement.row_shards = 2
    with pytest.raises(UserError, match=r"stages\[0\].batch_size: 3 windows at a time cannot be"):
        placement.check_stages((three,))
