"""Run the jobs of a grid one after the other: skip what is done, go on after a failure."""

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status
from rich.text import Text

from rope_jax import stopping
from rope_jax.console import print_message
from rope_jax.errors import UserError, printable
from rope_jax.grids.commands import JobFailed, Surroundings, log_of, run_job
from rope_jax.grids.jobs import Job, NotReady


def done_jobs(jobs: Sequence[Job]) -> frozenset[str]:
    """Return the names of the jobs that are done, as are all those that they follow.

    UserError: a run's folder holds a run with other settings. A run that starts from another one
    is checked only if that one is done.
    """
    done: set[str] = set()
    for job in jobs:
        if not all(other.name in done for other in job.follows):
            continue
        with contextlib.suppress(NotReady):  # a failure only if it is still so when its turn comes
            if job.is_done():
                done.add(job.name)
    return frozenset(done)


def run_jobs(
    jobs: Sequence[Job], root: Path | None, logs: Path, console: Console
) -> Mapping[str, str]:
    """Run all jobs that are not done, in order; print one line for each.

    root: as in `command_of`. logs: the folder for the output of the commands.
    Returns the jobs that failed or could not run, by name, each with the reason.

    Raises Stopped if a signal ended a job; UserError if this grid is running already.
    """
    failed: dict[str, str] = {}
    with _locked(logs) as lock:
        for number, job in enumerate(jobs, 1):
            stopping.check()
            title, start = f"[{number}/{len(jobs)}] {job.name}", time.monotonic()
            if blocking := [needed.name for needed in job.needs if needed.name in failed]:
                failed[job.name] = f"not run, because {blocking[0]} is not done"
                print_line(console, f"{title}: {failed[job.name]}", "yellow")
                continue
            try:
                ready = job.ready()
                if ready.is_done():
                    print_line(console, f"{title}: already done", "dim")
                    continue
                with console.status(Text(printable(title))) as status:
                    report = functools.partial(_show, status, title)
                    run_job(ready, root, logs, report, Surroundings(inherited=(lock,)))
            except (JobFailed, UserError) as error:
                failed[job.name] = str(error)
                print_line(console, f"{title}: failed: {error}", "red")
                continue
            print_line(console, f"{title}: done in {_duration(time.monotonic() - start)}")
    return failed


def print_failures(
    console: Console, jobs: Sequence[Job], failed: Mapping[str, str], logs: Path
) -> None:
    """Print every job that failed, with its last line and its log."""
    print_line(console, f"{len(failed)} of {len(jobs)} jobs are not done:", "red")
    for job in jobs:
        if job.name in failed:
            print_line(console, f"  {job.name}: {failed[job.name]}")
            if (log := log_of(job, logs)).exists():
                print_line(console, f"    {log}", "dim")
    print_line(console, "The same command tries them again.")


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print one line, see `print_message`."""
    print_message(console, text, style)


def _show(status: Status, title: str, line: str) -> None:
    """Show the newest line of a running job, cut to the width of the terminal."""
    status.update(Text(printable(f"{title}: {line}"), no_wrap=True, overflow="ellipsis"))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"


@contextlib.contextmanager
def _locked(logs: Path) -> Iterator[int]:
    """Lock the grid; yield the open file that holds the lock. UserError if another process has it.

    A command inherits the file, so the lock lasts until the command ends even if this process is
    killed: a second one would get in its way.
    """
    try:
        logs.mkdir(parents=True, exist_ok=True)
        lock = os.open(logs / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(f"{logs}: cannot be written ({error.strerror})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    except BlockingIOError:
        raise UserError(
            f"{logs}: this grid is running in another process, or one of its commands is still "
            "running although the grid was killed; wait for it"
        ) from None
    finally:
        os.close(lock)
