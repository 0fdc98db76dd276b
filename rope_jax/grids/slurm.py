"""Submit the jobs of a grid to Slurm, through submitit."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rope_jax import stopping
from rope_jax.config.grid import SlurmConfig
from rope_jax.console import print_message
from rope_jax.errors import Stopped, UserError
from rope_jax.grids.jobs import Job
from rope_jax.grids.run import last_line, run_job


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
            submitted[job.name] = executor.submit(run_submitted, job, root, logs)
        except Exception as error:  # whatever sbatch says, in submitit's own exceptions
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise UserError(f"slurm: {job.name} could not be submitted ({reason[0]})") from None
        ids[name] = str(submitted[job.name].job_id)
        line = last_line(job.log(logs))
        again = f"; it ended before with: {line}" if line else ""
        print_message(console, f"{title}: submitted as job {ids[name]}{again}")
    return submitted


def run_submitted(job: Job, root: Path | None, logs: Path) -> None:
    """Run a job on the machine that Slurm chose, unless it has been done meanwhile."""
    with stopping.listening():
        try:
            ready = job.ready()
            if not ready.is_done():
                run_job(ready, root, logs, in_slurm=True)
        except (UserError, OSError, Stopped) as error:
            raise RuntimeError(f"{job.name}: {error}") from None


def _executor(folder: Path, cluster: str) -> Any:
    try:
        import submitit

        return submitit.AutoExecutor(folder=folder, cluster=cluster)
    except ModuleNotFoundError:
        raise UserError(
            "launcher: slurm needs the package submitit; install it with "
            "python -m pip install -e '.[slurm]'"
        ) from None
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
