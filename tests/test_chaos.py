"""A small run of scripts/chaos.py; a long one is for whoever changes how files are written."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_no_attack_of_a_small_selection_succeeds() -> None:
    command = [sys.executable, str(ROOT / "scripts/chaos.py"), "--cases", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    tried = "kills: 1, signals: 1, damage: 2, full disk: 1"
    assert done.stdout == "".join(f"{name} tried, 0 failed\n" for name in tried.split(", "))
    assert (done.returncode, done.stderr) == (0, "")
