"""Run a small grid and a run of two tasks through a real Slurm, started on this machine alone.

    python scripts/check_slurm.py

Needs the commands of Slurm and munge (on Debian: apt-get install slurm-wlm munge) and the package
submitit (pip install -e '.[slurm]'); installs nothing. Starts munged, slurmctld and slurmd as this
user, with everything that they write in a temporary folder, on 127.0.0.1. Takes three minutes.
"""

import contextlib
import getpass
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Debian has the daemons where the path of a user does not lead.
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo", "scancel")
# Minutes until the jobs of the grid have to have ended.
LONGEST = 10

RUN = """\
name: tiny
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
stages: [{steps: 20, seq_len: 16, batch_size: 4}]
optim: {warmup_steps: 1}
data:
  {type: text, files: ['texts/*.txt'], test_fraction: 0.4, validation_fraction: 0.2,
   cache_dir: cache}
"""
SWEEP = "{name: short, lengths: [8, 16, 32], scalings: [trained], resamples: 100}\n"
GRID = """\
name: check
runs:
  - {name: good, train: run.yaml, sweeps: [sweep.yaml]}
  - {name: bad, train: run.yaml, set: {data.files: [no/such/file]}, sweeps: [sweep.yaml]}
  - name: endless
    train: run.yaml
    set: {stages.0.steps: 1000000, checkpoint.every_steps: 1000000}
compare: {resamples: 100}
launcher: slurm
slurm: {time_minutes: 10, cpus: 1}
"""


def main() -> int:
    missing = [name for name in COMMANDS if shutil.which(name, path=SEARCH) is None]
    missing += ["submitit"] * (importlib.util.find_spec("submitit") is None)
    if missing:
        need = "the head of this file says how to install what is needed"
        print(f"check_slurm.py: {', '.join(missing)} not found; {need}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        with _slurm(work / "slurm") as environment:
            (work / "here").mkdir()
            _write_inputs(work / "here")
            problems = list(_check_grid(work / "here", environment))
            problems += _check_two_tasks(work / "here", environment)
    for problem in problems:
        print(f"WRONG: {problem}")
    print("failed" if problems else "passed")
    return 1 if problems else 0


def _write_inputs(folder: Path) -> None:
    (folder / "texts").mkdir()
    for number in range(10):
        text = "".join(f"rope turns {(number * word * word) % 97} slow\n" for word in range(60))
        (folder / "texts" / f"{number}.txt").write_text(text)
    (folder / "run.yaml").write_text(RUN)
    (folder / "sweep.yaml").write_text(SWEEP)
    (folder / "grid.yaml").write_text(GRID)


def _check_grid(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Submit the grid and yield everything that is not as it should be."""

    def grid(*arguments: str) -> str:
        command = [sys.executable, "-m", "rope_jax", "grid", "grid.yaml", *arguments]
        done = _run(command, environment, cwd=folder)
        print(done, end="")
        return done

    def queue() -> str:
        return _run(["squeue", "--noheader", "--format=%i %j %T %r"], environment)

    first = grid()
    if first.count("submitted as job") != 6:
        yield "not all of the six jobs were submitted"
    if grid().count("in the queue as job") != 6:
        yield "jobs that are queued were submitted again"
    metrics = folder / "runs/endless/metrics.jsonl"
    if not _wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, LONGEST * 60):
        yield "the run without an end did not begin"
    _run(["scancel", "--name=check/endless/train"], environment)
    if not _wait_until(lambda: not queue().strip(), LONGEST * 60):
        yield f"the jobs had not ended after {LONGEST} minutes: {queue()}"
        return
    sweep = folder / "runs/good/evals/short/summary.json"
    comparison = folder / "comparison/comparison.csv"
    logs = folder / "runs/grids/check"
    for is_right, problem in (
        (sweep.exists(), "the sweep of the run that succeeds was not made"),
        (comparison.exists(), "the comparison was not made"),
        (not (folder / "runs/bad").exists(), "the run that fails has a folder"),
        ("no file matches" in _text(logs / "bad/train.log"), "its log does not say why it failed"),
        (not (logs / "bad/sweep-short.log").exists(), "its sweep was started"),
        ("which is saved" in _text(logs / "endless/train.log"), "the cancelled run did not save"),
        (
            [line.split()[-1] for line in grid("dry_run=true").splitlines() if "done" in line[:4]]
            == ["good/train", "good/sweep-short"],
            "the jobs that are done are not recognized",
        ),
    ):
        if not is_right:
            yield problem
    for path in sorted(folder.glob("runs/grids/check/**/*.log")):
        print(f"-- {path.relative_to(folder)}\n{path.read_text()[-300:]}")


def _check_two_tasks(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Train one run in two tasks of a job."""
    train = [sys.executable, str(ROOT / "train.py"), "run.yaml", "distributed={}", "name=two"]
    done = _run(["srun", "-n2", "--kill-on-bad-exit=1", *train], environment, cwd=folder)
    print(done, end="")
    if "2 × cpu" not in done:
        yield "two tasks did not train one run"


@contextlib.contextmanager
def _slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start a Slurm of one node; yield the environment in which its commands find it."""
    folder.mkdir(mode=0o755)
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    munge = folder / "munge" / "socket"
    config = folder / "slurm.conf"
    config.write_text(f"""\
ClusterName=check
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={_free_port()}
SlurmdPort={_free_port()}
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
MpiDefault=none
# follows the children of a job into sessions of their own
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count() or 1} State=UNKNOWN
PartitionName=check Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
    environment = os.environ | {"SLURM_CONF": str(config), "PATH": SEARCH}
    munged = f"munged --foreground --force --socket={munge} --key-file={key}"
    munged += "".join(f" --{name}={folder}/munge/{name}" for name in ("pid-file", "log-file"))
    munged += f" --seed-file={folder}/munge/seed"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for daemon in (munged, f"slurmctld -D -f {config}", f"slurmd -D -N {host} -f {config}"):
            words = daemon.split()
            with (folder / f"{words[0]}.out").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        words, env=environment, stdout=log, stderr=log, start_new_session=True
                    )
                )
            if daemon is munged and not _wait_until(munge.exists, 10):
                raise SystemExit(f"munged did not start:\n{_tails(folder)}")

        def is_idle() -> bool:
            with contextlib.suppress(subprocess.CalledProcessError):
                return _run(["sinfo", "--noheader", "--format=%t"], environment).strip() == "idle"
            return False

        if not _wait_until(is_idle, 60):
            raise SystemExit(f"Slurm did not start:\n{_tails(folder)}")
        print(_run(["sinfo", "--version"], environment).strip(), "is running")
        yield environment
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()


def _run(command: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None) -> str:
    """Return the standard output of a command. CalledProcessError if it fails."""
    done = subprocess.run(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return whether it did within this time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _tails(folder: Path) -> str:
    """Return the ends of the daemons' logs."""
    logs = sorted([*folder.glob("*.out"), *folder.glob("*.log"), *folder.glob("munge/log-file")])
    return "\n".join(f"-- {log.name}\n{log.read_text(errors='replace')[-800:]}" for log in logs)


def _free_port() -> int:
    """Return a TCP port that nothing listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
