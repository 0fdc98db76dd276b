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


@pytest.mark.parametrize(
    ("kind", "largest"),
    [
        ("few", LARGEST),
        pytest.param("models", LARGEST, marks=pytest.mark.slow),
        pytest.param("bfloat16", LARGEST_IN_BFLOAT16, marks=pytest.mark.slow),
        pytest.param("positions", LARGEST, marks=pytest.mark.slow),
    ],
)
def test_programs_on_a_mesh_compute_what_one_device_does(kind: str, largest: float) -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
    command = [sys.executable, str(Path(__file__).with_name("split_programs.py")), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    assert found
    # not "larger than", which is false for NaN
    wrong = {n: own for n, own in found.items() if not all(x <= largest for x in own.values())}
    assert not wrong
