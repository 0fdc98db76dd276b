"""Metrics on disk: JSON lines, and event files for TensorBoard."""

import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from rope_jax.sealed import write_text

_writers = itertools.count()
# TensorBoard sorts groups of charts by name. Under these names, those of a run's batches follow the
# loss, and the perplexities of its sweeps come first.
_GROUPS = {"distances": "train_distances", "tokens_at": "train_tokens_at"}

Scalars = Mapping[str, float | int]


def finite(value: Any) -> Any:
    """Replace infinities and nan, which JSON has not, by None."""
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonLinesWriter:
    """One JSON object per line; a line is complete or absent, and written at once."""

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        """Continue after `resume_step`: drop later lines, and malformed or incomplete ones."""
        self._path = path
        if path.exists():
            write_text(path, "".join(x for x in _complete_lines(path) if _step(x) <= resume_step))

    def scalars(self, step: int, values: Scalars) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite({"step": step, **values})) + "\n")


class TensorBoardWriter:
    """An event file in the directory of one TensorBoard run.

    It is written in the calling thread. tensorboardX's SummaryWriter has another one, whose queue
    is lost when the process is killed and which a full disk blocks forever.
    """

    def __init__(self, directory: Path, resume_step: int | None = None) -> None:
        """Open a new file. resume_step: hide what earlier attempts logged after this step."""
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a run's files in the order of their names. With the default ones, by
        # second and host, two would be the same, or in another order when the clock is behind.
        earlier = len(list(directory.glob("events.*.tfevents.*")))
        prefix = str(directory / f"events.start{earlier:06d}")
        self._file = EventsWriter(prefix, f".{os.getpid()}.{next(_writers)}")
        if resume_step is not None:
            self._write(resume_step + 1, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, step: int, values: Scalars) -> None:
        for name, value in values.items():
            group, slash, rest = name.partition("/")
            self.add(step, summary.scalar(f"{_GROUPS.get(group, group)}{slash}{rest}", value))

    def hparams(
        self, settings: Mapping[str, str], outcome: Mapping[str, float], metrics: Sequence[str]
    ) -> None:
        """Write this run's row in TensorBoard's table of hyperparameters: settings and outcome.

        TensorBoard takes the columns from whichever run it reads first, so all runs have to declare
        the same `metrics`. tensorboardX's own add_hparams would create a separate run for it.
        """
        for part in summary.hparams(settings, dict.fromkeys(metrics)):
            self.add(0, part)
        self.scalars(0, outcome)

    def add(self, step: int, content: Summary) -> None:
        """Write what a function of `tensorboardX.summary` returns: a text, an image, a layout."""
        self._write(step, summary=content)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, step: int, **content: object) -> None:
        self._file.write_event(Event(wall_time=time.time(), step=step, **content))


class Log:
    """The files in which a run or a fit records values by step; none until `open` is called."""

    def __init__(self) -> None:
        self._lines: dict[str, JsonLinesWriter] = {}
        self.events: TensorBoardWriter | None = None

    def open(self, folder: Path, resume_step: int) -> TensorBoardWriter:
        """Continue the files in a folder after `resume_step`; return the event file's writer."""
        self.events = TensorBoardWriter(folder, resume_step)
        for name in ("metrics", "throughput"):
            self._lines[name] = JsonLinesWriter(folder / f"{name}.jsonl", resume_step)
        return self.events

    def write(self, step: int, values: Scalars, file: str = "metrics") -> None:
        """Record values. "throughput": those that a resumed run does not reproduce bit for bit."""
        if self.events is not None:
            self._lines[file].scalars(step, values)
            self.events.scalars(step, values)

    def flush(self) -> None:
        """Hand all records to the operating system, so that they survive a kill."""
        if self.events is not None:
            self.events.flush()

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


def last_step(path: Path) -> int:
    """Return the last step in a file of JSON lines; 0 if there is none."""
    steps = (_step(line) for line in _complete_lines(path))
    return max((int(step) for step in steps if math.isfinite(step)), default=0)


def _complete_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _step(line: str) -> float | int:
    """Return the step of a line; infinity if it has none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, LookupError, TypeError):
        return math.inf
