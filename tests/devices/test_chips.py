"""Figures of known chips, also of devices that only a compiler can use."""

from types import SimpleNamespace

from rope_jax.devices import memory
from rope_jax.devices.chips import CHIPS, chip_of
from rope_jax.devices.memory import device_bytes


def test_jax_names_of_devices_belong_to_chips():
    kinds = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p"}
    kinds |= {"NVIDIA H100 80GB HBM3": "h100", "cpu": None, "NVIDIA GeForce RTX 3090": None}
    for kind, name in kinds.items():
        assert chip_of(kind) is CHIPS.get(name)


def test_jax_uses_three_quarters_of_a_gpu_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert CHIPS["h100"].usable == 84_942_979_072 * 3 // 4
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert CHIPS["h100"].usable == 84_942_979_072 // 2
    assert CHIPS["v5e"].usable == int(15.75 * 2**30)


def test_a_device_that_is_not_here_has_the_memory_of_its_data_sheet(wrong_types):
    def memory_stats():
        raise memory.jax.errors.JaxRuntimeError("INVALID_ARGUMENT: only for addressable devices")

    device = SimpleNamespace(device_kind="TPU v5 lite", platform="tpu", memory_stats=memory_stats)
    assert device_bytes(device) == int(15.75 * 2**30)
