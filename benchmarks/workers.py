"""Processes that take turns, so that other load on the machine affects all of them alike."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]


class Side(NamedTuple):
    """What one process runs.

    step:  runs one step; returns a number that shows that it computes the right thing.
    facts: figures to report beside the time, as JSON.
    warms: whether a step that does not count comes first, after the other side used the caches.
    """

    step: Callable[[], float]
    facts: Callable[[], dict[str, Any]] = dict
    warms: bool = True


def serve(build: Callable[[], Side]) -> None:
    """Be one side's process: read a number of steps from stdin, run them, print the seconds.

    Every printed line is an object with `seconds`, `last` and the side's facts. The first one,
    printed before anything is read, covers start-up and the first step.
    """
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for results; libraries print too
        start = time.perf_counter()
        side = build()
        last = side.step()
    print(json.dumps({"seconds": time.perf_counter() - start, "last": last}), flush=True)
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            if side.warms:
                side.step()
            start = time.perf_counter()
            for _ in range(int(line)):
                last = side.step()
            result = {"seconds": time.perf_counter() - start, "last": last, **side.facts()}
        print(json.dumps(result), flush=True)


class Worker:
    """The process of one side, started with the first step done."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it. environment: variables that it has besides those of this process."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | dict(environment or {}),
        )
        self.start_seconds: float = self._read_result()["seconds"]

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def steps(self, count: int) -> dict[str, Any]:
        """Run steps and return the seconds they took, and the side's facts."""
        assert self._process.stdin
        print(count, file=self._process.stdin, flush=True)
        return self._read_result()

    def _read_result(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a worker process died; its error is printed above")
        result: dict[str, Any] = json.loads(line)
        return result


def watch(
    command: Sequence[str], *patterns: str, environment: Mapping[str, str] | None = None
) -> list[float]:
    """Run a command in a terminal; return the seconds until each pattern shows, and until its end.

    SystemExit, with what the terminal showed, if it fails or a pattern never does.
    environment: None: this process's.
    """
    ours, theirs = pty.openpty()
    began, shown, seconds = time.perf_counter(), "", dict.fromkeys(patterns, 0.0)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    with contextlib.suppress(OSError):  # Linux reports the end of the other side as an error
        while read := os.read(ours, 2**16):
            shown += read.decode(errors="replace")
            for pattern in patterns:
                if not seconds[pattern] and re.search(pattern, shown):
                    seconds[pattern] = time.perf_counter() - began
    os.close(ours)
    if process.wait() or not all(seconds.values()):
        sys.exit(shown)
    return [*seconds.values(), time.perf_counter() - began]
