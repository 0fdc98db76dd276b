"""Results do not depend on the number of devices and processes: each command in a fresh process.

Eight devices are the CPU divided into eight (by an XLA flag); two processes run on this host.
"""

import contextlib
import csv
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rope_jax.config.load import load
from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.training.run import train

ROOT = Path(__file__).parents[2]
CONFIG = """
name: tiny
log_every_steps: 1
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 2,
        attention: xla}
optim: {warmup_steps: 2}
stages:
  - {steps: 8, seq_len: 32, batch_size: 16, grad_accumulation: 2, scaling: {type: pi, factor: 2},
     positions: {type: pose, length: 64}, mixed: {fraction: 0.25, seq_len: 8}}
validation: {every_steps: 4, batches: 1}
checkpoint: {every_steps: 3, keep: 9}
data:
  type: text
  files: [texts/*.txt]
  validation_fraction: 0.2
  test_fraction: 0.4
  cache_dir: cache
"""
SWEEP = ["lengths=[8,32]", "scalings=[trained,{type: pi, factor: auto}]", "resamples=100"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of texts and, in `one`, a run trained on one device, in this process."""
    made = tmp_path_factory.mktemp("devices")
    (made / "run.yaml").write_text(CONFIG)
    (made / "texts").mkdir()
    rng = np.random.default_rng(0)
    for index in range(10):
        text = "".join(rng.choice(["rope ", "turns ", "slow\n", "fast "], 120))
        (made / "texts" / f"{index}.txt").write_text(text)
    with contextlib.chdir(made):
        train(load(Config, Path("run.yaml"), ["runs_dir=one"]), plain_console(quiet=True))
    return made


@pytest.fixture(scope="module")
def swept(folder: Path) -> Path:
    """Sweep the run in `one` on one device."""
    ended(start(folder, "eval_ppl.py", "one/tiny", *SWEEP))
    return folder / "one/tiny"


def start(folder: Path, script: str, *arguments: str, devices: int = 1) -> subprocess.Popen:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        ),
    }
    return subprocess.Popen(
        [sys.executable, str(ROOT / script), *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen, status: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, out + err
    return out, err


def two_processes(
    folder: Path, script: str, *arguments: str, status: int = 0
) -> list[tuple[str, str]]:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    meeting = [f"distributed.coordinator=localhost:{port}", "distributed.num_processes=2"]
    processes = [
        start(folder, script, *arguments, *meeting, f"distributed.process_id={i}") for i in (0, 1)
    ]
    return [ended(process, status) for process in processes]


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def same_losses(one: Path, other: Path) -> None:
    pairs = list(zip(metrics(one), metrics(other), strict=True))
    assert len(pairs) == 10
    for a, b in pairs:
        assert a.keys() == b.keys()
        for key in a:
            assert b[key] == pytest.approx(a[key], rel=1e-5), (a["step"], key)


def same_results(one: Path, other: Path) -> None:
    def rows(run: Path) -> list[dict]:
        with (run / "evals/sweep/results.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    pairs = list(zip(rows(one), rows(other), strict=True))
    assert len(pairs) == 4
    for a, b in pairs:
        assert a["targets"] == b["targets"]
        assert float(b["nll"]) == pytest.approx(float(a["nll"]), rel=1e-5)


def forget(run: Path, *steps: int) -> None:
    for step in steps:
        shutil.rmtree(run / "checkpoints" / str(step))


@pytest.mark.slow
def test_eight_devices_train_like_one(folder: Path) -> None:
    out, _ = ended(start(folder, "train.py", "run.yaml", "runs_dir=eight", devices=8))
    assert "8 × cpu" in out
    same_losses(folder / "one/tiny", folder / "eight/tiny")


@pytest.mark.slow
def test_devices_that_share_everything_train_and_sweep_like_one(folder: Path) -> None:
    even = "model.vocab_size=258"
    ended(start(folder, "train.py", "run.yaml", "runs_dir=even", even))
    mesh = ["mesh.fsdp=2", "mesh.context=2", "mesh.tensor=2"]
    ended(start(folder, "train.py", "run.yaml", "runs_dir=all", even, *mesh, devices=8))
    same_losses(folder / "even/tiny", folder / "all/tiny")
    ended(start(folder, "eval_ppl.py", "even/tiny", *SWEEP))
    # about 32 KiB: what a window of 32 tokens takes on one device is more, on two less
    small = [*SWEEP, "memory_gib=3.0e-5"]
    out, _ = ended(start(folder, "eval_ppl.py", "all/tiny", *small, devices=8))
    assert "which 2 devices share" in " ".join(out.split())
    same_results(folder / "even/tiny", folder / "all/tiny")


@pytest.mark.slow
def test_two_processes_train_resume_and_sweep_like_one(folder: Path, swept: Path) -> None:
    command = "train.py", "run.yaml", "runs_dir=two", "mesh.fsdp=2"
    (first, _), (second, _) = two_processes(folder, *command)
    assert "2 × cpu" in first
    assert "training" not in second  # only the first prints
    run = folder / "two/tiny"
    same_losses(folder / "one/tiny", run)
    forget(run, 8, 6)
    (output, _), _ = two_processes(folder, *command)
    assert "after step 3 of 8" in output
    same_losses(folder / "one/tiny", run)
    two_processes(folder, "eval_ppl.py", "two/tiny", *SWEEP)
    same_results(swept, run)


@pytest.mark.slow
def test_a_run_continues_on_another_number_of_devices(folder: Path, swept: Path) -> None:
    one, eight = folder / "back/tiny", folder / "to_one/tiny"
    shutil.copytree(folder / "one/tiny", one)
    forget(one, 8, 6)
    mesh = ["mesh.data=2", "mesh.fsdp=4"]
    out, _ = ended(start(folder, "train.py", "run.yaml", "runs_dir=back", *mesh, devices=8))
    assert "after step 3 of 8" in out
    same_losses(folder / "one/tiny", one)
    shutil.copytree(one, eight)
    forget(eight, 8)  # the remaining ones were saved by eight devices
    assert "after step 6 of 8" in ended(start(folder, "train.py", "run.yaml", "runs_dir=to_one"))[0]
    same_losses(folder / "one/tiny", eight)
    # Sweep on eight devices, with parameters that one device saved.
    ended(start(folder, "eval_ppl.py", "to_one/tiny", *SWEEP, devices=8))
    same_results(swept, eight)


@pytest.mark.slow
def test_an_error_of_the_first_process_is_reported_by_all(folder: Path) -> None:
    for _, err in two_processes(folder, "train.py", "run.yaml", "runs_dir=one", "seed=5", status=2):
        said = [line for line in err.splitlines() if line.startswith("train.py:")]
        assert len(said) == 1
        assert "holds a run with another seed" in said[0]
