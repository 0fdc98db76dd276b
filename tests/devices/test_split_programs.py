"""Gradients, losses and the NLL of every token are those of one device on every mesh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# of float32: sums over devices have another order
LARGEST = 5e-5
# Products are rounded to 8 bits, on one device as on several.
LARGEST_IN_BFLOAT16 = 2e-2


def differences(kind: str) -> dict[str, dict[str, float]]:
    """Return what `split_programs.py` prints, run on a CPU divided into eight devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
    command = [sys.executable, str(Path(__file__).with_name("split_programs.py")), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def check(found: dict[str, dict[str, float]], largest: float = LARGEST) -> None:
    # not "larger than", which is false for NaN
    wrong = {n: own for n, own in found.items() if not all(x <= largest for x in own.values())}
    assert found
    assert not wrong


@pytest.mark.usefixtures("commands_compile_quickly")
def test_every_axis_of_a_mesh_computes_what_one_device_does() -> None:
    check(differences("few"))


@pytest.mark.slow
@pytest.mark.usefixtures("commands_compile_quickly")
def test_models_on_every_mesh_are_as_on_one_device() -> None:
    check(differences("models"))


@pytest.mark.slow
@pytest.mark.usefixtures("commands_compile_quickly")
def test_bfloat16_on_a_mesh_is_as_on_one_device() -> None:
    check(differences("bfloat16"), LARGEST_IN_BFLOAT16)


@pytest.mark.slow
@pytest.mark.usefixtures("commands_compile_quickly")
def test_every_encoding_and_map_is_the_same_where_devices_share_windows() -> None:
    check(differences("positions"))
