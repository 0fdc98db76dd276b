"""Grids on other schedulers: shell commands, and submission to Slurm through submitit."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rope_jax.config.grid import GridConfig
from rope_jax.config.load import load
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.grids.expand import expand
from rope_jax.grids.run import done_jobs, run_submitted, shell_lines, submit
from tests.grids.test_run import done_now, expanded

LOGS = Path("runs/grids/small")


def grid_of(*overrides):
    grid = load(GridConfig, Path("grid.yaml"), overrides)
    return grid, expand(grid)


def submit_grid(*overrides, cluster="slurm"):
    """Submit the grid; return submitit's jobs by name, and what was printed."""
    grid, jobs = grid_of(*overrides)
    out = io.StringIO()
    console = plain_console(file=out)
    submitted = submit(jobs, done_jobs(jobs), grid.slurm, LOGS, console, cluster)
    return submitted, out.getvalue()


def ids_of(submitted):
    return {name: job.job_id for name, job in submitted.items()}


def test_the_printed_commands_run_under_sh(stand_ins, folder):
    Path("run.yaml").rename("a run's $config.yaml")
    _, jobs = grid_of("""runs.0.train="a run's $config.yaml\"""")
    lines = shell_lines(jobs, frozenset())
    after = [line.rpartition("  # ")[2] for line in lines]
    assert after == [
        "tiny-s0/train",
        "tiny-s0/sweep-short, after tiny-s0/train",
        "tiny-s1/train",
        "tiny-s1/sweep-short, after tiny-s1/train",
        "compare, after tiny-s0/sweep-short, tiny-s1/sweep-short",
    ]
    subprocess.run(["sh", "-e"], input="\n".join(lines), text=True, check=True)
    done = done_jobs(jobs)
    assert done == {job.name for job in jobs} - {"compare"}
    (compare,) = shell_lines(jobs, done)
    assert compare.endswith("# compare")


def test_what_is_missing_or_refused_is_said(stand_ins, folder, slurm, monkeypatch):
    sbatch = Path(os.environ["PATH"].partition(os.pathsep)[0]) / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified' >&2; exit 1\n")
    says = r"slurm: tiny-s0/train could not be submitted \(sbatch: error: invalid partition spec"
    with pytest.raises(UserError, match=says):
        submit_grid()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"^launcher: slurm needs the commands of Slurm \(sbatch,"):
        submit_grid()
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"^launcher: slurm needs the package submitit; install it"):
        submit_grid()


def test_a_submitted_job_survives_slurms_signals_and_is_skipped_when_done(stand_ins, folder):
    (first, second, *_) = expanded()
    Path("kill").touch()
    run_submitted(first, LOGS)
    assert done_now() == {"tiny-s0/train"}
    Path("fail-tiny-s0").touch()
    run_submitted(first, LOGS)
    Path("fail-tiny-s0-short").touch()
    with pytest.raises(
        RuntimeError, match=r"^tiny-s0/sweep-short: there is no luck for tiny-s0-short$"
    ):
        run_submitted(second, LOGS)


SBATCH = """\
#!/bin/sh
n=$(($(cat counter 2> /dev/null || echo 40) + 1))
echo $n > counter
cp "$1" submitted-$n.sh
echo "Submitted batch job $n"
"""


@pytest.fixture
def slurm(folder, monkeypatch):
    """Make stand-ins for Slurm's commands: they keep what is submitted, and run nothing."""
    there = folder.parent / "slurm"
    there.mkdir()
    queue = "cat queue 2> /dev/null || true\n"
    for name, text in {"sbatch": SBATCH, "srun": "", "squeue": f"#!/bin/sh\n{queue}"}.items():
        (there / name).write_text(text or "#!/bin/sh\n")
        (there / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(there), prepend=os.pathsep)


def options(number):
    """Return the options of a submitted job as a dict."""
    lines = Path(f"submitted-{number}.sh").read_text().splitlines()
    given = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH --")]
    return dict(line.partition("=")[::2] for line in given)


def test_what_slurm_is_asked_for(stand_ins, folder, slurm):
    asked = "{partition: big, time_minutes: 90, gpus: 1, cpus: 4, memory_gib: 12, "
    asked += "options: {account: mine}}"
    submitted, _ = submit_grid(f"slurm={asked}")
    names = ["tiny-s0/train", "tiny-s0/sweep-short", "tiny-s1/train", "tiny-s1/sweep-short"]
    assert ids_of(submitted) == dict(zip([*names, "compare"], map(str, range(41, 46)), strict=True))
    first = options(41)
    wanted = {"job-name": "small/tiny-s0/train", "partition": "big", "time": "90"}
    wanted |= {"account": "mine", "cpus-per-task": "4", "gpus-per-node": "1", "mem": "12GB"}
    assert wanted.items() <= first.items()
    assert "dependency" not in first
    assert options(42)["dependency"] == "afterok:41"
    assert options(44)["dependency"] == "afterok:43"
    assert options(45)["dependency"] == "afterany:42:44"
    assert options(45)["kill-on-invalid-dep"] == "yes"


def test_what_is_queued_is_not_submitted_again(stand_ins, folder, slurm):
    submit_grid()
    # 41 has failed, so Slurm has removed 42; 45 has ended; 7 is not of this grid
    queue = ["43 small/tiny-s1/train", "44 small/tiny-s1/sweep-short"]
    lines = [f"{job} {folder}\n" for job in queue]
    Path("queue").write_text("".join(lines) + f"7 small/tiny-s0/train {folder.parent}\n")
    submitted, out = submit_grid()
    assert "[3/5] tiny-s1/train: in the queue as job 43\n" in out
    wanted = {"tiny-s0/train": "46", "tiny-s0/sweep-short": "47", "compare": "48"}
    assert ids_of(submitted) == wanted
    assert options(47)["dependency"] == "afterok:46"
    assert options(48)["dependency"] == "afterany:47:44"
