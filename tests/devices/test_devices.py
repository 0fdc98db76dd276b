"""Results do not depend on the number of devices and processes.

Eight devices are the CPU divided into eight (by an XLA flag); two processes run on this host. Each
of these processes runs several commands, one after the other.
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

import pytest

from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.run import sweep_run
from rope_jax.training.run import train
from tests.training.conftest import tiny

ROOT = Path(__file__).parents[2]
STAGE = {
    **{"steps": 8, "seq_len": 32, "batch_size": 16, "grad_accumulation": 2},
    **{"scaling": {"type": "pi", "factor": 2}, "positions": {"type": "pose", "length": 64}},
    "mixed": {"fraction": 0.25, "seq_len": 8},
}
SETTINGS = {
    "log_every_steps": 1,
    "validation": {"every_steps": 4, "batches": 1},
    "checkpoint": {"every_steps": 3, "keep": 9},
}
SWEEP = ["lengths=[8,32]", "scalings=[trained,{type: pi, factor: auto}]", "resamples=100"]
# argv: a list of commands. Prints a list of what each of them printed, or of its error.
COMMANDS = """
import contextlib, io, json, shutil, sys
from rope_jax.commands.main import sweep, train
from rope_jax.errors import UserError

commands = {"train": train, "sweep": sweep, "forget": lambda paths: [
    shutil.rmtree(path, ignore_errors=True) for path in paths
]}
said = []
for name, *words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            commands[name](words)
        except UserError as error:
            print(f"refused: {error}")
    said.append(" ".join(out.getvalue().split()))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of texts and, in `one`, a run trained and swept on one device."""
    made = tmp_path_factory.mktemp("devices")
    config = dump(tiny(made, stages=[STAGE], **SETTINGS))
    (made / "run.yaml").write_text(config.replace("vocab_size: null", "vocab_size: 258"))
    run, asked = trained_here(made, "one"), load(SweepConfig, None, SWEEP)
    with contextlib.chdir(made):
        sweep_run(run, run.load_config(), asked, plain_console(quiet=True))
    return made


def trained_here(folder: Path, runs: str) -> RunDirectory:
    with contextlib.chdir(folder):
        config = load(TrainingConfig, Path("run.yaml"), [f"runs_dir={runs}"])
        return train(config, plain_console(quiet=True))


def started(folder: Path, commands: list[list[str]], devices: int = 1) -> subprocess.Popen[str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    said: list[str] = json.loads(out.splitlines()[-1])
    return said


def lines(folder: Path, runs: str, file: str) -> list[str]:
    return (folder / runs / "tiny" / file).read_text().splitlines()


def same_losses(folder: Path, runs: str) -> None:
    one, other = (
        [json.loads(line) for line in lines(folder, name, "metrics.jsonl")]
        for name in ("one", runs)
    )
    assert len(one) == len(other) == 10
    for a, b in zip(one, other, strict=True):
        assert b == pytest.approx(a, rel=1e-5)


def same_results(folder: Path, runs: str) -> None:
    one, other = (
        list(csv.DictReader(lines(folder, name, "evals/sweep/results.csv")))
        for name in ("one", runs)
    )
    assert len(one) == len(other) == 4
    for a, b in zip(one, other, strict=True):
        assert a["targets"] == b["targets"]
        assert float(b["nll"]) == pytest.approx(float(a["nll"]), rel=1e-5)


def copy(folder: Path, source: str, runs: str, *forgotten: str) -> None:
    shutil.copytree(folder / source / "tiny", folder / runs / "tiny")
    for name in forgotten:
        shutil.rmtree(folder / runs / "tiny" / name)


@pytest.mark.slow
def test_eight_devices_train_resume_and_sweep_like_one(folder: Path) -> None:
    copy(folder, "one", "back", "checkpoints/8", "checkpoints/6")
    copy(folder, "one", "swept", "evals")
    everything = ["mesh.fsdp=2", "mesh.context=2", "mesh.tensor=2"]
    commands = [
        ["train", "run.yaml", "runs_dir=all", *everything],
        # about 20 KiB: what a window of 32 tokens takes on one device is more, on two less
        ["sweep", "all/tiny", *SWEEP, "memory_gib=2.0e-5"],
        ["train", "run.yaml", "runs_dir=back", "mesh.data=2", "mesh.fsdp=4"],
        ["sweep", "swept/tiny", *SWEEP],
    ]
    trained, swept, resumed, _ = printed(started(folder, commands, devices=8))
    assert "8 × cpu" in trained
    assert "which 2 devices share" in swept
    assert "after step 3 of 8" in resumed
    for runs in ("all", "back"):
        same_losses(folder, runs)
    for runs in ("all", "swept"):
        same_results(folder, runs)
    # one device goes on with what eight have saved
    copy(folder, "back", "to_one", "checkpoints/8")
    trained_here(folder, "to_one")
    same_losses(folder, "to_one")


@pytest.mark.slow
def test_two_processes_train_resume_sweep_and_fail_like_one(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        meeting = f"{{coordinator: 'localhost:{probe.getsockname()[1]}', num_processes: 2"
    train_two = ["train", "run.yaml", "runs_dir=two", "mesh.fsdp=2"]
    processes = []
    for number in (0, 1):
        newest = [f"two/tiny/checkpoints/{step}" for step in (8, 6) if number == 0]
        commands = [
            [*train_two, f"distributed={meeting}, process_id: {number}}}"],
            ["forget", *newest],
            train_two,
            ["sweep", "two/tiny", *SWEEP],
            [*train_two, "seed=5"],
        ]
        processes.append(started(folder, commands))
    (trained, _, resumed, swept, refused), others = map(printed, processes)
    assert "2 × cpu" in trained
    assert "after step 3 of 8" in resumed
    assert "results" in swept
    assert "holds a run with another seed" in refused
    assert others == ["", "", "", "", refused]  # only the first one prints, but for errors
    same_losses(folder, "two")
    same_results(folder, "two")
