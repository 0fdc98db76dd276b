"""Run a job's command in a process of its own, with its output in a log."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rope_jax import stopping
from rope_jax.errors import Stopped, UserError
from rope_jax.grids.jobs import Job
from rope_jax.invocation import SCRIPTS

_TAIL_BYTES = 4096
# Seconds between two looks at the log, for the line that shows the progress.
_LOOK = 1.0


class Surroundings(NamedTuple):
    """What the command of a job is started in and stopped with."""

    inherited: tuple[int, ...] = ()
    """Open files that the command keeps open as well."""
    prefix: tuple[str, ...] = ()
    """Words in front of the command: a program that runs it."""
    stop: signal.Signals | None = None
    """The signal that asks the command to stop; None: the one that this process was sent."""


_PLAIN = Surroundings()


class JobFailed(Exception):
    """A job that ended without its result; the message is the last line of its output."""


def command_of(job: Job, root: Path | None) -> list[str]:
    """Return the command line of a job.

    root: the folder of the repository, with the scripts; None: the installed command is called.
    """
    script, *arguments = job.arguments()
    if root is None:
        name = next(name for name, its_script in SCRIPTS.items() if its_script == script)
        return [sys.executable, "-m", "rope_jax", name, *arguments]
    return [sys.executable, str(root / script), *arguments]


def log_of(job: Job, logs: Path) -> Path:
    """Return the path of a job's log in the folder of all logs."""
    return logs / f"{job.name}.log"


def run_job(
    job: Job,
    root: Path | None,
    logs: Path,
    report: Callable[[str], None] = lambda line: None,
    surroundings: Surroundings = _PLAIN,
) -> None:
    """Run the command of a job that is ready, and record that the job is done.

    report: called about once per second with the newest line of the log.

    Raises JobFailed if the command fails or leaves no result, Stopped if a signal ended it, and
    UserError if the log cannot be written.
    """
    log = log_of(job, logs)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        status = _run(command_of(job, root), log, report, surroundings)
        if status:
            raise JobFailed(_reason(status, log))
        if not job.is_finished():
            raise JobFailed(f"the command ended, but {job.result} is not there or not complete")
        job.record()
    except OSError as error:
        where = error.filename or log
        raise UserError(f"{where}: cannot be written ({error.strerror or error})") from None


def last_line(log: Path) -> str:
    """Return the last line of a log that has any text; "" if there is none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _run(
    command: Sequence[str], log: Path, report: Callable[[str], None], surroundings: Surroundings
) -> int:
    """Run a command with its output appended to a log; return its exit status.

    If this process is asked to stop, the command is asked to, once, and waited for.
    """
    with log.open("ab") as file:
        file.write(f"$ {shlex.join(command)}\n".encode(errors="replace"))
        file.flush()
        # In a session of its own: at Ctrl-C, the terminal would send a second signal to it, which
        # ends a command at once instead of cleanly.
        process = subprocess.Popen(
            [*surroundings.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=surroundings.inherited,
        )
    told, looked = False, time.monotonic()
    try:
        while True:
            number = stopping.requested()
            if number is not None and not told:
                process.send_signal(surroundings.stop or number)
                told = True
            if time.monotonic() - looked > _LOOK:
                report(last_line(log))
                looked = time.monotonic()
            try:
                status = process.wait(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:  # an exception, such as that of Slurm's time limit
            process.send_signal(surroundings.stop or signal.SIGTERM)
            process.wait()
    if (number := stopping.requested()) is not None:
        raise Stopped("stopped; run the same command again to resume", number)
    return status


def _reason(status: int, log: Path) -> str:
    """Say why a command failed."""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    line = last_line(log)
    # a command that was ended before it could say anything leaves only our own line
    return f"exit status {status}" if not line or line.startswith("$ ") else line
