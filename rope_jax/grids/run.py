"""Run the jobs of a grid: skip what is done, and go on after a failure.

One after the other here, or all through Slurm. The command of each job is a process of its own,
with its output in a log.
"""

import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rope_jax import stopping
from rope_jax.config.grid import SlurmConfig
from rope_jax.console import describe_duration, print_message
from rope_jax.errors import Stopped, UserError
from rope_jax.extras import needs_extra
from rope_jax.grids.jobs import Job

# Slurm sends its signals to all processes of a job: SIGUSR2 near the time limit, SIGTERM when the
# job is cancelled. Both must reach our process alone, which stops the command cleanly and once:
# SIGUSR2 would kill the command, and so would a second SIGTERM.
_DEAF = ("sh", "-c", "trap '' USR2 TERM; exec \"$@\"", "sh")


def done_jobs(jobs: Sequence[Job]) -> frozenset[str]:
    """Return the names of the jobs that are done, as are all those that they need."""
    done: set[str] = set()
    for job in jobs:
        if all(other.name in done for other in job.needs) and job.is_done():
            done.add(job.name)
    return frozenset(done)


def shell_lines(jobs: Sequence[Job], done: frozenset[str]) -> list[str]:
    """Return a line of shell for each job that is not done; it ends with what it waits for."""
    lines = []
    for job in jobs:
        if job.name not in done:
            waits = ", ".join(other.name for other in job.needs if other.name not in done)
            after = f", after {waits}" if waits else ""
            lines.append(f"{shlex.join(job.command())}  # {job.name}{after}")
    return lines


def run_jobs(jobs: Sequence[Job], logs: Path, console: Console) -> Mapping[str, str]:
    """Run all jobs that are not done, in order; print and return why some failed, by name.

    Raises Stopped if a signal ended a job.
    """
    failed: dict[str, str] = {}
    for number, job in enumerate(jobs, 1):
        stopping.check()
        title, start = f"[{number}/{len(jobs)}] {job.name}", time.monotonic()
        blocking = [needed.name for needed in job.needs if needed.name in failed]
        if blocking and job.needs_all:
            failed[job.name] = f"not run, because {blocking[0]} is not done"
            print_message(console, f"{title}: {failed[job.name]}", "yellow")
            continue
        try:
            ready = job.ready()
            if ready.is_done():
                print_message(console, f"{title}: already done", "dim")
                continue
            with console.status(f"{title}: {job.log(logs)}"):
                run_job(ready, logs)
        except (UserError, OSError) as error:
            failed[job.name] = str(error)
            print_message(console, f"{title}: failed: {error}", "red")
            continue
        print_message(console, f"{title}: done in {describe_duration(time.monotonic() - start)}")
    if failed:
        print_message(console, f"{len(failed)} of {len(jobs)} jobs are not done:", "red")
        for name, reason in failed.items():
            print_message(console, f"  {name}: {reason}")
        print_message(console, f"Their output: {logs}. The same command tries them again.")
    return failed


def run_job(job: Job, logs: Path, in_slurm: bool = False) -> None:
    """Run a job that is ready.

    Raises UserError if the command fails or leaves no result, and Stopped if a signal ended it.
    """
    log, command = job.log(logs), job.command()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n")
        file.flush()
        # In a session of its own: at Ctrl-C, the terminal would send a second signal to it,
        # which ends a command at once instead of cleanly.
        process = subprocess.Popen(
            [*(_DEAF if in_slurm else ()), *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None and stopping.requested() is None:
            time.sleep(0.1)
    finally:
        if process.poll() is None:  # a signal, or an exception such as at Slurm's time limit
            process.send_signal(signal.SIGINT if in_slurm else signal.SIGTERM)
            with stopping.uninterrupted():
                process.wait()
    stopping.check()
    if process.returncode:
        line = last_line(log)
        raise UserError(f"exit status {process.returncode}" if line.startswith("$ ") else line)
    if not job.result.is_file():
        raise UserError(f"the command ended, but {job.result} is not there")


def last_line(log: Path) -> str:
    """Return the last line of a log that has any text; "" if there is none."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return text.rstrip().rpartition("\n")[2].strip()


def submit(
    jobs: Sequence[Job],
    done: frozenset[str],
    config: SlurmConfig,
    logs: Path,
    console: Console,
    cluster: str = "slurm",
) -> dict[str, Any]:
    """Submit the jobs that are neither done nor queued; return submitit's jobs by name.

    Each starts once those that it needs have succeeded, the comparison once all sweeps have ended.
    cluster: submitit's name for where to run; "local" starts every job at once, here.

    Raises UserError: submitit or Slurm is not there, or Slurm refuses a job.
    """
    executor, ids = _executor(logs / "slurm", cluster), _queued()
    submitted: dict[str, Any] = {}
    for number, job in enumerate(jobs, 1):
        stopping.check()
        title, name = f"[{number}/{len(jobs)}] {job.name}", f"{logs.name}/{job.name}"
        if job.name in done:
            print_message(console, f"{title}: already done", "dim")
            continue
        if name in ids:
            print_message(console, f"{title}: in the queue as job {ids[name]}", "dim")
            continue
        before = [ids[f"{logs.name}/{other.name}"] for other in job.needs if other.name not in done]
        try:
            executor.update_parameters(name=name, **_parameters(job, config, before))
            submitted[job.name] = executor.submit(run_submitted, job, logs)
        except Exception as error:  # whatever sbatch says, in submitit's own exceptions
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise UserError(f"slurm: {job.name} could not be submitted ({reason[0]})") from None
        ids[name] = str(submitted[job.name].job_id)
        line = last_line(job.log(logs))
        again = f"; it ended before with: {line}" if line else ""
        print_message(console, f"{title}: submitted as job {ids[name]}{again}")
    return submitted


def run_submitted(job: Job, logs: Path) -> None:
    """Run a job on the machine that Slurm chose, unless it has been done meanwhile."""
    with stopping.listening():
        try:
            ready = job.ready()
            if not ready.is_done():
                run_job(ready, logs, in_slurm=True)
        except (UserError, OSError, Stopped) as error:
            raise RuntimeError(f"{job.name}: {error}") from None


def _executor(folder: Path, cluster: str) -> Any:
    with needs_extra("slurm", "launcher: slurm"):
        import submitit
    try:
        return submitit.AutoExecutor(folder=folder, cluster=cluster)
    except RuntimeError:
        raise UserError(
            "launcher: slurm needs the commands of Slurm (sbatch, srun), and they are not on this "
            "machine; use local or print"
        ) from None


def _parameters(job: Job, config: SlurmConfig, before: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = dict(config.options)
    if before:
        options["dependency"] = ":".join(["afterok" if job.needs_all else "afterany", *before])
        # otherwise a job whose dependency failed would stay in the queue forever
        options["kill-on-invalid-dep"] = "yes"
    parameters = {
        "timeout_min": config.time_minutes,
        "cpus_per_task": config.cpus,
        "gpus_per_node": config.gpus or None,
        "mem_gb": config.memory_gib,
        "slurm_partition": config.partition,
        "slurm_additional_parameters": options,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def _queued() -> dict[str, str]:
    """Return the ids of what was submitted in this folder and has not ended, by name."""
    if shutil.which("squeue") is None:
        return {}
    command = ["squeue", "--me", "--noheader", "--format=%i %j %Z"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        raise UserError(f"launcher: squeue failed ({answer.stderr.strip() or 'no reason given'})")
    jobs = (line.split(maxsplit=2) for line in answer.stdout.splitlines())
    return {name: number for number, name, folder in jobs if folder == str(Path.cwd())}
