"""Ways to run a grid other than one job after the other: print its commands, or submit to Slurm."""

import getpass
import json
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rope_jax import stopping
from rope_jax.config.grid import SlurmConfig
from rope_jax.errors import Stopped, UserError
from rope_jax.grids.commands import JobFailed, Surroundings, command_of, last_line, log_of, run_job
from rope_jax.grids.jobs import Job
from rope_jax.grids.run import print_line
from rope_jax.sealed import write_text

# Among the logs: the ids of the jobs that were submitted.
_IDS = "slurm.json"
# Slurm sends its signals to all processes of a job: SIGUSR2 near the time limit, SIGTERM when the
# job is cancelled. Both must reach this process alone, which stops the command cleanly and once:
# SIGUSR2 would kill the command, and so would a second SIGTERM.
_IN_SLURM = Surroundings(
    prefix=("sh", "-c", "trap '' USR2 TERM; exec \"$@\"", "sh"), stop=signal.SIGINT
)


def shell_lines(jobs: Sequence[Job], done: frozenset[str], root: Path | None) -> list[str]:
    """Return one line of shell for each job that is not done, in an order in which they can run.

    A comment at the end of each line names the job, and the jobs of this list that it has to wait
    for. root: as in `command_of`; the lines have to be run in the present folder.
    """
    lines = []
    for job in jobs:
        if job.name in done:
            continue
        waits = [other.name for other in job.follows if other.name not in done]
        about = job.name + f", after {', '.join(waits)}" * bool(waits)
        lines.append(f"{shlex.join(command_of(job, root))}  # {about}")
    return lines


def submit(
    jobs: Sequence[Job],
    done: frozenset[str],
    config: SlurmConfig,
    root: Path | None,
    logs: Path,
    console: Console,
    cluster: str = "slurm",
) -> dict[str, Any]:
    """Submit the jobs that are neither done nor queued; return submitit's jobs by name.

    Each is started once those that it needs have succeeded, the comparison once all sweeps have
    ended. Jobs that an earlier call submitted are recognized by their ids, in slurm.json among the
    logs.
    cluster: submitit's name for where to run; "local" starts every job at once, on this machine.

    Raises UserError: submitit or Slurm is not there, or Slurm refuses a job.
    """
    executor = _executor(logs / "slurm", cluster)
    ids, queued = _read_ids(logs), _queued()
    submitted: dict[str, Any] = {}
    for number, job in enumerate(jobs, 1):
        stopping.check()
        title = f"[{number}/{len(jobs)}] {job.name}"
        if job.name in done:
            print_line(console, f"{title}: already done", "dim")
            continue
        if ids.get(job.name) in queued:
            print_line(console, f"{title}: in the queue as job {ids[job.name]}", "dim")
            continue
        before = [ids[other.name] for other in job.follows if other.name not in done]
        try:
            executor.update_parameters(**_parameters(job, config, before))
            submitted[job.name] = executor.submit(run_submitted, job, root, logs)
        except Exception as error:  # whatever sbatch says, in submitit's own exceptions
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise UserError(f"slurm: {job.name} could not be submitted ({reason[0]})") from None
        ids[job.name] = job_id = str(submitted[job.name].job_id)
        # after each job: an interrupted grid must not submit it a second time
        write_text(logs / _IDS, json.dumps(ids, indent=1) + "\n")
        line = last_line(log_of(job, logs))
        again = f"; it ended before with: {line}" if line else ""
        print_line(console, f"{title}: submitted as job {job_id}{again}")
    return submitted


def run_submitted(job: Job, root: Path | None, logs: Path) -> None:
    """Run a job on the machine that Slurm chose, unless it has been done meanwhile.

    Raises RuntimeError, with which Slurm's job fails, if the job fails or is stopped.
    """
    with stopping.listening():
        try:
            ready = job.ready()
            if not ready.is_done():
                run_job(ready, root, logs, surroundings=_IN_SLURM)
        except (JobFailed, UserError, Stopped) as error:
            raise RuntimeError(f"{job.name}: {error}") from None


def _executor(folder: Path, cluster: str) -> Any:
    try:
        import submitit
    except ModuleNotFoundError:
        raise UserError(
            "launcher: slurm needs the package submitit; install it with "
            "python -m pip install -e '.[slurm]'"
        ) from None
    try:
        return submitit.AutoExecutor(folder=folder, cluster=cluster)
    except RuntimeError:
        raise UserError(
            "launcher: slurm needs the commands of Slurm (sbatch, srun), and they are not on this "
            "machine; use local or print"
        ) from None


def _parameters(job: Job, config: SlurmConfig, before: Sequence[str]) -> dict[str, Any]:
    """Return submitit's parameters for a job. before: ids of the jobs that it waits for."""
    parameters: dict[str, Any] = {
        "name": job.name,
        "timeout_min": config.time_minutes,
        "cpus_per_task": config.cpus,
    }
    if config.gpus:
        parameters["gpus_per_node"] = config.gpus
    if config.memory_gib is not None:
        parameters["mem_gb"] = config.memory_gib
    if config.partition is not None:
        parameters["slurm_partition"] = config.partition
    options: dict[str, Any] = dict(config.options)
    if before:
        # what follows without needing it also runs after a failure
        kind = "afterok" if job.needs else "afterany"
        options["dependency"] = ":".join([kind, *before])
        # otherwise a job whose dependency failed would stay in the queue forever
        options["kill-on-invalid-dep"] = "yes"
    parameters["slurm_additional_parameters"] = options
    return parameters


def _read_ids(logs: Path) -> dict[str, str]:
    """Return the ids under which earlier calls submitted jobs, by name."""
    try:
        ids = json.loads((logs / _IDS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return ids if isinstance(ids, dict) else {}


def _queued() -> frozenset[str]:
    """Return the ids of this user's jobs that wait or run; none where there is no Slurm."""
    if shutil.which("squeue") is None:
        return frozenset()
    command = ["squeue", "--noheader", "--format=%i", f"--user={getpass.getuser()}"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        reason = answer.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise UserError(f"launcher: squeue failed ({reason[0]})")
    return frozenset(answer.stdout.split())
