"""A grid that runs: in order, skipping what is done, past failures, and again after a kill."""

import contextlib
import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rope_jax import stopping
from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig
from rope_jax.config.load import load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.errors import Stopped, UserError
from rope_jax.grids.expand import expand
from rope_jax.grids.jobs import Job
from rope_jax.grids.run import done_jobs, run_job, run_jobs
from rope_jax.rope.strategies import PIScaling
from tests.grids.conftest import ROOT, SWEEP_YAML
from tests.grids.stand_ins import Process

NAMES = [f"tiny-s{s}/{kind}" for s in (0, 1) for kind in ("train", "sweep-short")] + ["compare"]


@pytest.fixture
def run(stand_ins, folder, monkeypatch):
    """Return a function that runs the grid and returns what happened to each job, by name."""
    in_this_process = SimpleNamespace(**vars(subprocess) | {"Popen": Process})
    monkeypatch.setattr("rope_jax.grids.run.subprocess", in_this_process)

    def run(*overrides: str) -> dict[str, str]:
        grid = load(GridConfig, Path("grid.yaml"), overrides)
        console = plain_console(file=io.StringIO(), width=60)
        failed = run_jobs(expand(grid), Path("runs/grids/small"), console)
        Path("out.txt").write_text(console.file.getvalue())
        lines = console.file.getvalue().splitlines()
        said = [re.fullmatch(r"\[\d+/\d+\] (\S+): (.*)", line) for line in lines]
        outcome = {found[1]: re.sub(r"in about .*$", "now", found[2]) for found in said if found}
        assert {name: text.removeprefix("failed: ") for name, text in outcome.items()} == {
            name: failed.get(name, text) for name, text in outcome.items()
        }
        return outcome

    return run


def starts() -> dict[str, int]:
    """Return how often the command of each job was started."""
    logs = Path("runs/grids/small")
    return {
        str(log.relative_to(logs).with_suffix("")): log.read_text().count("$ ")
        for log in logs.rglob("*.log")
    }


def test_jobs_run_once_and_in_order_and_then_only_what_changed(run):
    assert run() == dict.fromkeys(NAMES, "done now")
    assert run() == dict.fromkeys(NAMES[:-1], "already done") | {"compare": "done now"}
    assert starts() == dict.fromkeys(NAMES[:-1], 1) | {"compare": 2}
    places = Path("compared/comparison.csv").read_text().split()
    assert places == [f"runs/tiny-s{seed}/evals/short" for seed in (0, 1)]
    # a sweep that was deleted is made again, as are all whose settings have changed
    Path("runs/tiny-s0/evals/short/summary.json").unlink()
    outcome = run()
    assert outcome["tiny-s0/sweep-short"] == "done now"
    assert outcome["tiny-s1/sweep-short"] == "already done"
    Path("sweep.yaml").write_text("name: short\nlengths: [64, 128, 256]\n")
    again = dict.fromkeys(NAMES, "done now") | dict.fromkeys(NAMES[0:3:2], "already done")
    assert run() == again
    # a third seed: its run, its sweep, and the comparison
    outcome = run("runs.0.axes.seed=[0,1,2]")
    new = [name for name, text in outcome.items() if text == "done now"]
    assert new == ["tiny-s2/train", "tiny-s2/sweep-short", "compare"]


def test_a_result_counts_if_it_is_of_the_last_step_and_these_settings(run):
    Path("grid.yaml").write_text(FITS.replace("[2, 4]", "[4]"))
    names = {"base/train", "base/fit-search-x4", "base/sweep-short-search-x4"}
    run()
    assert done_now() == names
    # a sweep of an earlier checkpoint, with other settings, or of other numbers does not
    swept = Path("runs/base/evals/short-search-x4/summary.json")
    of_last = swept.read_text()
    swept.write_text(json.dumps(json.loads(of_last) | {"step": 100}))
    assert done_now() == names - {"base/sweep-short-search-x4"}
    swept.write_text(of_last)
    Path("sweep.yaml").write_text("name: short\nlengths: [64, 256]\n")
    assert done_now() == names - {"base/sweep-short-search-x4"}
    Path("sweep.yaml").write_text(SWEEP_YAML)
    strategy = Path("runs/base/fits/search-x4/strategy.json")
    strategy.write_text(json.dumps({"scaling": {"type": "pi", "factor": 3.0}}))
    assert done_now() == names - {"base/sweep-short-search-x4"}
    # neither does a fit of an earlier checkpoint
    summary = Path("runs/base/fits/search-x4/summary.json")
    summary.write_text(json.dumps({"step": 100}))
    assert done_now() == {"base/train"}


def test_a_failure_does_not_stop_the_others(run):
    Path("fail-tiny-s0").touch()
    outcome = run()
    assert outcome == {
        "tiny-s0/train": "failed: there is no luck for tiny-s0",
        "tiny-s0/sweep-short": "not run, because tiny-s0/train is not done",
        **dict.fromkeys(NAMES[2:], "done now"),
    }
    assert Path("compared/comparison.csv").read_text().split() == ["runs/tiny-s1/evals/short"]
    Path("fail-tiny-s0").unlink()
    outcome = run()
    assert [name for name, text in outcome.items() if text == "already done"] == NAMES[2:4]
    assert len(Path("compared/comparison.csv").read_text().split()) == 2


def test_a_run_with_other_settings_is_refused_before_anything_runs(run):
    run("runs.0.set={seed: '{seed}', log_every_steps: 7}")
    before = starts()
    with pytest.raises(UserError, match=r"runs/tiny-s0: holds a run with another log_every_steps;"):
        done_now()
    assert starts() == before


FITS = """\
name: small
window: 128
runs:
  - {name: base, train: run.yaml}
  - name: search
    fit: fit.yaml
    source: base
    axes: {factor: [2, 4]}
    set: {length: '{length}'}
    sweeps: [{config: sweep.yaml, set: {scalings: ['{fit}/strategy.json']}}]
"""
ONE_FIT = re.sub("\\n    sweeps: .*", "", FITS).replace("[2, 4]", "[4]")
OF_FITS = [f"base/{kind}-x{n}" for n in (2, 4) for kind in ("fit-search", "sweep-short-search")]


def expanded() -> list[Job]:
    return expand(load(GridConfig, Path("grid.yaml")))


def done_now() -> frozenset[str]:
    return done_jobs(expanded())


def test_fits_and_their_sweeps(run):
    Path("grid.yaml").write_text(FITS)
    assert run() == dict.fromkeys(["base/train", *OF_FITS], "done now")
    fitted = load(FitConfig, Path("runs/base/fits/search-x4/fit.yaml"))
    assert fitted == FitConfig(name="search-x4", length=(512,))
    evals = Path("runs/base/evals")
    given = json.loads((evals / "short-search-x4/summary.json").read_text())["given"]
    assert given == [
        "--sweep",
        "sweep.yaml",
        "scalings=[runs/base/fits/search-x4/strategy.json]",
        "name=short-search-x4",
    ]
    (entry,) = load(SweepConfig, evals / "short-search-x4/sweep.yaml").scalings
    assert (entry.label, entry.scaling_at_window) == ("search-x4", PIScaling(factor=4.0))
    assert set(run().values()) == {"already done"}


def test_training_may_begin_with_the_strategy_of_a_fit(run):
    tuned = (
        "  - {name: tuned, train: run.yaml, source: search, "
        "set: {rope.strategy: '{fit}/strategy.json', stages.0.seq_len: '{length}'}}\n"
    )
    Path("grid.yaml").write_text(ONE_FIT + tuned)
    assert run()["tuned-x4/train"] == "done now"
    config = load(TrainingConfig, Path("runs/tuned-x4/config.yaml"))
    assert (config.rope.scaling, config.stages[0].seq_len) == (PIScaling(factor=4.0), 512)
    assert run()["tuned-x4/train"] == "already done"
    Path("fit.yaml").write_text("{length: 512, steps: 100, learn: [far_phase, bias]}")
    assert done_now() == {"base/train"}


def start_grid(module, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", module, "grid", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, status):
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, out + err
    return out, err


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_grid_goes_on_where_it_was(stand_ins, folder, run):
    log = Path("runs/grids/small/tiny-s1/train.log")
    Path("hang-tiny-s1").touch()
    grid = start_grid("tests.grids.stand_ins", "grid.yaml")
    wait_for(lambda: log.exists() and "begins" in log.read_text())
    grid.kill()
    finish(grid, -signal.SIGKILL)
    Path("hang-tiny-s1").unlink()
    wait_for(Path("runs/tiny-s1/metrics.jsonl").exists)  # its command goes on
    Path("fail-compare").touch()
    run()
    out = Path("out.txt").read_text()
    assert "[3/5] tiny-s1/train: already done\n[4/5] tiny-s1/sweep-short: done in" in out
    assert "1 of 5 jobs are not done:\n  compare: there is no luck for compare\n" in out


@contextlib.contextmanager
def once_it_begins(action):
    """In this block, call a function in a thread as soon as the command's log says it begins."""
    log = Path("logs/tiny-s0/train.log")

    def wait():
        wait_for(lambda: log.exists() and "begins" in log.read_text())
        action()

    Path("hang-tiny-s0").touch()
    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()
    assert log.read_text().endswith("stopped by signal 15\n")


def test_ctrl_c_stops_the_command_and_then_the_grid(stand_ins, folder):
    interrupt = functools.partial(os.kill, os.getpid(), signal.SIGINT)
    with once_it_begins(interrupt), stopping.listening(), pytest.raises(Stopped, match="same comm"):
        run_job(expanded()[0], Path("logs"))


def test_a_command_does_not_outlive_an_error(stand_ins, folder, monkeypatch):
    """Such as the one that submitit raises when Slurm's time limit is near."""

    def fail():
        monkeypatch.setattr(stopping, "requested", lambda: 1 / 0)

    with once_it_begins(fail), pytest.raises(ZeroDivisionError):
        run_job(expanded()[0], Path("logs"))
