"""`make accelerator` without one: its two scripts on a CPU, and how its parts are run."""

import os
import re
import subprocess
import sys
import tarfile
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


class Device:
    """benchmarks/device.sh with a Python that only writes down what it is called with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls, self.python = folder / "out", folder / "calls", folder / "python"
        self.does("true")

    def does(self, action: str) -> None:
        """Let every call run a shell command."""
        self.python.write_text(
            f'#!/bin/sh\necho "$XLA_PYTHON_CLIENT_MEM_FRACTION $*" >> {self.calls}\n{action}\n'
        )
        self.python.chmod(0o755)

    def run(self, *parts: str, **environment: str) -> tuple[int, list[str], str]:
        """Return the status, the calls, and what was printed."""
        self.calls.write_text("")
        names = ("MODEL", "BOOKS", "TINY", "LIMIT", "TORCH_PYTHON", "ARCHIVE")
        kept = {name: value for name, value in os.environ.items() if name not in names}
        done = subprocess.run(
            ["bash", "benchmarks/device.sh", str(self.folder), *parts],
            cwd=ROOT,
            env=kept | {"PYTHON": str(self.python)} | environment,
            capture_output=True,
            text=True,
        )
        return done.returncode, self.calls.read_text().splitlines(), done.stdout + done.stderr


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_parts_run_in_order_and_a_failed_one_again(device: Device) -> None:
    device.does('case "$*" in *"1b --only training"*) exit 3;; esac')
    status, calls, out = device.run()
    assert status == 1
    assert [call.split()[1:4] for call in calls] == [
        ["scripts/check_accelerator.py"],
        ["benchmarks/accelerator.py", "--models", "1b"],
        ["benchmarks/accelerator.py", "--models", "1b-32k"],
        ["benchmarks/accelerator.py", "--models", "1b-32k"],
    ]
    assert re.search(r"kernels: status 0 after \d+ of 150 s", out)
    assert "mfu-8k: status 3" in out
    device.does("true")
    status, (again,), out = device.run()
    assert status == 0
    assert "--models 1b --only training" in again
    assert "sweep-131k: done before" in out


def test_a_part_is_stopped_when_its_time_is_over(device: Device) -> None:
    # it takes its time to end, as a training that saves its state does
    device.does('trap "sleep 1; echo saved >> $0.calls; exit" TERM; sleep 60 & wait')
    status, (only,), out = device.run(LIMIT="1")
    assert status == 1
    assert "check_accelerator" in only
    assert Path(f"{device.python}.calls").read_text() == "saved\n"
    assert re.search(r"kernels: status 124 after \d+ of 1 s", out)
    assert "mfu-8k: not started, no time is left" in out


def test_an_unknown_part_is_refused(device: Device) -> None:
    status, calls, out = device.run("kernel")
    assert (status, calls) == (2, [])
    assert "kernel: no such part" in out


def test_parts_of_smollm2_share_the_gpu_and_are_archived(device: Device, tmp_path: Path) -> None:
    archive = tmp_path / "results.tar.gz"
    status, calls, out = device.run(MODEL="model.gguf", BOOKS="books", ARCHIVE=str(archive))
    assert status == 0, out
    assert {call.split()[0] for call in calls if "accelerator" in call} == {"0.92"}
    ntk = [call for call in calls if "smollm2-ntk-s1" in call]
    assert [call.split()[:4] for call in ntk] == [
        ["0.22", "-m", "rope_jax", name] for name in ("train", "sweep")
    ]
    with tarfile.open(archive) as packed:
        assert "./longppl-fit.log" in packed.getnames()
