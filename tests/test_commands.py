"""The two commands as a user runs them: train, resume, sweep, and what bad input gets."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parents[1]
TINY = [
    "model.hidden_size=16",
    "model.intermediate_size=24",
    "model.num_hidden_layers=1",
    "model.num_attention_heads=2",
    "stages=[{steps: 3, seq_len: 16, batch_size: 4}]",
    "optim.warmup_steps=1",
    "log_every_steps=1",
    "data.type=text",
    "data.files=[texts/*.txt]",
    "data.test_fraction=0.4",
    "data.validation_fraction=0.2",
    "data.cache_dir=cache",
]


def call(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess:
    quickly = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment = os.environ | quickly | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def refused(done: subprocess.CompletedProcess, message: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with texts and one trained run."""
    made = tmp_path_factory.mktemp("work")
    (made / "texts").mkdir()
    rng = np.random.default_rng(0)
    for index in range(10):
        text = "".join(rng.choice(["rope ", "turns ", "slow\n", "fast "], 120))
        (made / "texts" / f"{index}.txt").write_text(text)
    (made / "run.yaml").write_text("name: tiny\nstages: []\n")
    done = call(made, "train.py", "run.yaml", *TINY)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for said in ("parameters", "cpu", "192 tokens", "none: wavelengths 6.283 to", "L 16"):
        assert said in done.stdout
    return made


def test_training_again_changes_nothing(folder: Path) -> None:
    metrics = (folder / "runs/tiny/metrics.jsonl").read_bytes()
    done = call(folder, "train.py", "run.yaml", *TINY)
    assert done.returncode == 0, done.stderr
    assert "already trained to step 3" in done.stdout
    assert (folder / "runs/tiny/metrics.jsonl").read_bytes() == metrics


def test_a_sweep_leaves_its_files(folder: Path) -> None:
    done = call(
        folder,
        "eval_ppl.py",
        "runs/tiny",
        "name=short",
        "lengths=[8,16,32]",
        "protocols=[same_tokens,whole_window,per_position]",
        "resamples=200",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "3 compilations" in done.stdout
    out = folder / "runs/tiny/evals/short"
    with (out / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {"trained", "pi-auto", "ntk-auto", "yarn-auto"}
    assert {row["name"] for row in rows} == names
    # an untrained model's guess, at worst: bytes are 256 and the text has far fewer
    assert all(2 < float(row["ppl"]) < 300 for row in rows)
    same = {row["targets"] for row in rows if row["protocol"] == "same_tokens"}
    assert len(same) == 1
    summary = json.loads((out / "summary.json").read_text())
    assert summary["window"] == 16
    assert summary["curves"]["trained"]["blow_up"]["16"]["value"] == 1
    assert imread(out / "curve.png").shape[1] > 1000
    for name in names:
        assert len(list((out / name).glob("events.*.tfevents.*"))) == 1


def test_bad_input_is_one_line(folder: Path) -> None:
    refused(
        call(folder, "eval_ppl.py", "texts"), "texts: not a run directory (it has no config.yaml)"
    )
    refused(
        call(folder, "eval_ppl.py", "runs/tiny", "lengths=[8,100000]"),
        "documents has the 100001 tokens that length 100000 needs; the longest length that would",
    )
    refused(call(folder, "eval_ppl.py", "runs/tiny", "lengths=[8]", "targets=5"), "8 is too short")
    refused(call(folder, "train.py", "run.yaml", *TINY, "seed=3"), "holds a run with another seed")


def test_a_full_disk_stops_training_and_the_last_checkpoint_stays(folder: Path) -> None:
    command = ["run.yaml", *TINY, "name=full", "checkpoint.every_steps=1", "checkpoint.keep=9"]
    command.append("stages=[{steps: 20, seq_len: 16, batch_size: 4}]")
    # no file may grow past 6,000 bytes: for a process that is what a full disk is, after a while
    limit = "import resource, runpy, sys; sys.argv = sys.argv[1:]; import rope_jax.training.loop; "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
    limit += "runpy.run_path(sys.argv[0], run_name='__main__')"
    script = str(ROOT / "train.py")
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9",  # read, but write nothing
    }
    done = subprocess.run(
        [sys.executable, "-c", limit, script, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    refused(done, "the same command continues from")
    assert "too large" in done.stderr.lower()
    assert not list((folder / "runs/full").glob("*.tmp*"))
    assert call(folder, "train.py", *command).returncode == 0


def test_kills_at_any_moment_leave_no_trace() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/kill_test.py"), "--kills", "2"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills survived" in done.stdout
    assert "all bit-identical" in done.stdout
