"""How a mesh divides devices, how programs are compiled on each platform, and their peak speed."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from rope_jax.config.devices import MeshConfig
from rope_jax.config.sections import StageConfig
from rope_jax.devices import hardware
from rope_jax.devices.hardware import compiled, compiler_options, peak_flops
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError

OPTION, SETTING = "xla_backend_optimization_level", "jax_disable_most_optimizations"


def test_meshes_that_do_not_divide_devices_or_windows_are_refused() -> None:
    with pytest.raises(UserError, match=r"mesh: fsdp 3 takes 3 devices, and there is 1"):
        Placement(MeshConfig(fsdp=3))
    three = StageConfig(steps=1, seq_len=8, batch_size=3)
    placement = Placement(MeshConfig())
    placement.check_stages((three,))
    placement.row_shards = 2
    with pytest.raises(UserError, match=r"stages\[0\].batch_size: 3 windows at a time cannot be"):
        placement.check_stages((three,))


@pytest.mark.parametrize("chosen", [None, "flag", "setting"])
def test_the_level_is_for_cpus_alone_and_one_that_a_user_chose_stays(
    chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--some_flag=1 --{OPTION}=3" if chosen == "flag" else "")
    before = jax.config.values[SETTING]
    jax.config.update(SETTING, chosen == "setting")
    try:
        assert compiler_options("cpu") == (None if chosen else {OPTION: 2})
        assert compiler_options("gpu") is None
        assert compiler_options("tpu") is None
    finally:
        jax.config.update(SETTING, before)


def test_the_first_argument_says_where_a_program_runs(
    monkeypatch: pytest.MonkeyPatch, wrong_types: None
) -> None:
    monkeypatch.setattr("rope_jax.devices.hardware.compiler_options", lambda platform: platform)
    lowered = SimpleNamespace(compile=lambda compiler_options: compiler_options)
    function = SimpleNamespace(lower=lambda *_: lowered)
    device = type("Device", (), {"platform": "tpu"})()
    elsewhere = SimpleNamespace(sharding=SimpleNamespace(device_set=[device]))
    assert compiled(function, {"a": elsewhere}, jnp.ones(2)) == "tpu"
    assert compiled(function, {}, elsewhere) == "cpu"


def test_the_peak_is_that_of_the_data_sheet_or_measured(
    monkeypatch: pytest.MonkeyPatch, wrong_types: None
) -> None:
    monkeypatch.setattr("rope_jax.devices.hardware._MEASURED_SIZE", 1024)
    uncached = hardware._measured_flops.__wrapped__
    monkeypatch.setattr("rope_jax.devices.hardware._measured_flops", uncached)
    flops, source = peak_flops()
    assert source == "measured, 1024³ float32 matmul"
    assert 1e9 < flops < 1e14
    devices = [SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")] * 4
    monkeypatch.setattr("jax.devices", lambda: devices)
    assert peak_flops() == (4 * 989e12, "data sheet, bfloat16")
