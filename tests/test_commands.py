"""The two commands as a user runs them: train, resume, sweep, and errors reported in one line."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import eval_ppl
import train
from rope_jax import cli

pytestmark = pytest.mark.usefixtures("commands_compile_quickly")

ROOT = Path(__file__).parents[1]
TINY = [
    "model.hidden_size=16",
    "model.intermediate_size=24",
    "model.num_hidden_layers=1",
    "model.num_attention_heads=2",
    "stages=[{steps: 20, seq_len: 16, batch_size: 4}]",
    "optim.warmup_steps=1",
    "log_every_steps=1",
    "checkpoint.every_steps=2",
    "data.type=text",
    "data.files=[texts/*.txt]",
    "data.test_fraction=0.4",
    "data.validation_fraction=0.2",
    "data.cache_dir=cache",
]


def start(folder: Path, *command: str, **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen, status: int = 0) -> tuple[str, str]:
    """Wait for a command, check its exit status, and return its stdout and stderr."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, out + err
    return out, err


def call(folder: Path, script: str, *arguments: str) -> tuple[str, str]:
    return finish(start(folder, str(ROOT / script), *arguments))


def next_lines(out: str) -> list[str]:
    """Return the commands that the last lines name, without the word for Python."""
    *_, lines = out.partition("\nnext: ")
    return [line.strip().partition(" ")[2] for line in lines.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, commands_compile_quickly: None) -> Path:
    """A working directory with texts and one trained run."""
    made = tmp_path_factory.mktemp("work")
    (made / "texts").mkdir()
    rng = np.random.default_rng(0)
    for index in range(10):
        text = "".join(rng.choice(["rope ", "turns ", "slow\n", "fast "], 120))
        (made / "texts" / f"{index}.txt").write_text(text)
    (made / "run.yaml").write_text("name: tiny\nstages: []\n")
    out, err = call(made, "train.py", "run.yaml", *TINY)
    assert err == ""
    for said in ("parameters", "cpu", "1,280 tokens", "none: slowest wavelength 6,283", "L 16"):
        assert said in out
    assert next_lines(out) == [f"{ROOT / 'eval_ppl.py'} runs/tiny"]
    return made


def metrics(folder: Path, run: str) -> bytes:
    return (folder / "runs" / run / "metrics.jsonl").read_bytes()


def test_training_again_changes_nothing(folder: Path) -> None:
    before = metrics(folder, "tiny")
    out, _ = call(folder, "train.py", "run.yaml", *TINY)
    assert "already trained to step 20" in out
    assert metrics(folder, "tiny") == before


def test_a_sweep_writes_its_files(folder: Path) -> None:
    out, err = call(
        folder,
        "eval_ppl.py",
        "runs/tiny",
        "name=short",
        "lengths=[8,16,32]",
        "protocols=[same_tokens,whole_window,per_position]",
        "resamples=200",
    )
    assert err == ""
    assert next_lines(out) == [
        f"{ROOT / 'scripts/compare.py'} runs/tiny/evals/short  # an interactive page",
        "--logdir runs/tiny",
    ]
    evals = folder / "runs/tiny/evals/short"
    with (evals / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {"trained", "pi-auto", "ntk-auto", "yarn-auto"}
    assert {row["name"] for row in rows} == names
    # An untrained model guesses at worst: there are 256 bytes, and the text has far fewer.
    assert all(2 < float(row["ppl"]) < 300 for row in rows)
    same = {row["targets"] for row in rows if row["protocol"] == "same_tokens"}
    assert len(same) == 1
    summary = json.loads((evals / "summary.json").read_text())
    assert summary["window"] == 16
    assert summary["compilations"] == 3
    assert summary["curves"]["trained"]["blow_up"]["16"]["value"] == 1
    assert imread(evals / "curve.png").shape[1] > 1000
    for name in names:
        assert len(list((evals / name).glob("events.*.tfevents.*"))) == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["eval_ppl.py", "texts"], "texts: not a run directory (it has no config.yaml)"),
        (
            ["eval_ppl.py", "runs/tiny", "lengths=[8,100000]"],
            "documents has the 100001 tokens that length 100000 needs; the longest possible length",
        ),
        (["eval_ppl.py", "runs/tiny", "lengths=[8]", "targets=5"], "8 is too short"),
        (["train.py", "run.yaml", *TINY, "seed=3"], "holds a run with another seed"),
    ],
    ids=["not a run", "too long", "too short", "another seed"],
)
def test_bad_input_is_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    message: str,
) -> None:
    """In this process; tests/test_bad_input.py starts the commands themselves."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as caught:
        cli.run({"train.py": train.main, "eval_ppl.py": eval_ppl.main}[command[0]])
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.slow
def test_a_run_ends_the_same_after_a_full_disk_and_a_kill(folder: Path) -> None:
    command = ["run.yaml", *TINY, "name=interrupted"]
    # No file may grow past 6,000 bytes, which for a process is what a full disk is.
    limit = "import resource, runpy, sys; sys.argv = sys.argv[1:]; import rope_jax.training.loop; "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
    limit += "runpy.run_path(sys.argv[0], run_name='__main__')"
    read_only_cache = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9"}
    limited = start(folder, "-c", limit, str(ROOT / "train.py"), *command, **read_only_cache)
    _, err = finish(limited, status=2)
    assert err.count("\n") == 1, err
    assert "the same command continues from" in err
    assert "too large" in err.lower()
    assert not list((folder / "runs/interrupted").glob("*.tmp*"))

    written = len(metrics(folder, "interrupted"))
    killed = start(folder, str(ROOT / "train.py"), *command)
    while len(metrics(folder, "interrupted")) <= written and killed.poll() is None:
        time.sleep(0.001)
    killed.kill()
    finish(killed, status=-9)
    assert metrics(folder, "interrupted") != metrics(folder, "tiny")

    call(folder, "train.py", *command)
    assert metrics(folder, "interrupted") == metrics(folder, "tiny")
