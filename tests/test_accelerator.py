"""`make accelerator` without one: its two scripts on a CPU, and how its parts are run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK, BENCHMARK = ROOT / "scripts/check_accelerator.py", ROOT / "benchmarks/accelerator.py"


def run(script: Path, *arguments: str, devices: int = 1, status: int = 0) -> str:
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
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr * status


@pytest.mark.slow
def test_a_cpu_is_no_accelerator() -> None:
    nothing = "there is no accelerator here, only a CPU\n"
    assert run(CHECK, status=1) == f"nothing was checked: {nothing}"
    assert run(BENCHMARK, status=1) == f"nothing was measured: {nothing}"


@pytest.mark.slow
def test_kernels_agree_however_two_devices_share_the_work() -> None:
    out = run(CHECK, "--on-cpu", "--length", "128", devices=2)
    for name in ("xla", "blockwise", "xla with two bands", "blockwise with two bands"):
        for split in ("data 2", "tensor 2", "context 2"):
            errors = re.findall(rf"^{name}, {split}, .* difference (\S+)$", out, re.MULTILINE)
            assert errors
            assert max(map(float, errors)) < 0.03
    assert "splash, not checked: model.attention: splash needs a TPU" in out
    assert "training loop: it waits only for what it asked for" in out


@pytest.mark.slow
def test_the_benchmark_measures_training_and_a_sweep() -> None:
    out = run(BENCHMARK, "--on-cpu", "--models", "tiny", "--rounds", "1", "--steps", "2", devices=2)
    assert out.count("tiny: 93,248 parameters on 2 × cpu, bfloat16, blockwise") == 2
    training = re.search(r"training, 2 × 64 tokens per device and step: ([\d,]+) tokens/s", out)
    sweep = re.search(r"64 and 256 tokens, 2 documents per device: ([\d,]+) tokens/s", out)
    planned = re.search(r"([\d.]+) GiB planned", out)
    for found in (training, sweep, planned):
        assert found is not None
        assert float(found[1].replace(",", "")) > 0
