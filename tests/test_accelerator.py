"""`make accelerator` on a CPU: it refuses to, and its two scripts run to the end if told to."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
CHECK, BENCHMARK = ROOT / "scripts/check_accelerator.py", ROOT / "benchmarks/accelerator.py"


def run(script: Path, *arguments: str, devices: int = 1) -> str:
    flags = os.environ.get("XLA_FLAGS", "")
    environment = {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={devices}",
    }
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_cpu_is_no_accelerator() -> None:
    nothing = "there is no accelerator here, only a CPU\n"
    assert run(CHECK) == f"nothing was checked: {nothing}"
    assert run(BENCHMARK) == f"nothing was measured: {nothing}"


def test_kernels_agree_however_two_devices_share_the_work() -> None:
    out = run(CHECK, "--on-cpu", "--length", "128", devices=2)
    for name in ("xla", "blockwise", "xla with two bands", "blockwise with two bands"):
        for split in ("data 2", "tensor 2", "context 2"):
            errors = re.findall(rf"^{name}, {split}, .* difference (\S+)$", out, re.MULTILINE)
            assert errors
            assert max(map(float, errors)) < 0.03
    assert "splash, not checked: model.attention: splash needs a TPU" in out
    assert "training loop: it waits only for what it asked for" in out


def test_the_benchmark_measures_training_and_a_sweep() -> None:
    out = run(BENCHMARK, "--on-cpu", "--models", "tiny", "--rounds", "1", "--steps", "2", devices=2)
    assert "tiny: 93,248 parameters on 2 × cpu, bfloat16, blockwise" in out
    assert "windows of 64 tokens, 4 per step" in out
    for what in ("training", "sweep"):
        (speed,) = re.findall(rf"{what}: ([\d,]+) tokens/s", out)
        assert int(speed.replace(",", "")) > 0
    (planned,) = re.findall(r"([\d.]+) GiB planned", out)
    assert float(planned) > 0
