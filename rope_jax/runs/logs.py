"""Where numbers go: JSON lines and TensorBoard, behind one small protocol."""

import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

_writers = itertools.count()


class Writer(Protocol):
    """Something that records scalars by step."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record values at a step."""

    def flush(self) -> None:
        """Hand everything so far to the system: it is there if the process is killed after."""

    def close(self) -> None:
        """Flush and close."""


class JsonLinesWriter:
    """One JSON object a line; a line is whole or absent."""

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        """Goes on after `resume_step`: later lines, and what is no line of ours, are dropped."""
        kept = [line for line in _whole_lines(path) if _step(line) <= resume_step]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(kept))
        temporary.replace(path)
        self._file = path.open("a", buffering=1)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        # JSON has no infinity and no nan: null stands for them
        finite = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in values.items()
        }
        self._file.write(json.dumps({"step": step, **finite}) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardWriter:
    """An event file in a directory of its own run.

    Written at once, by this thread. tensorboardX's SummaryWriter hands events to another one:
    what is still on the way when the process is killed is lost, and where that thread meets a
    full disk it ends, and the process waits for it forever.
    """

    def __init__(self, directory: Path, resume_step: int | None = None) -> None:
        """Going on after `resume_step` hides what earlier attempts logged past it."""
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a run's files in the order of their names. By themselves they are named
        # by second and host: two of one second would overwrite each other, and those of a machine
        # whose clock is behind would come before what they go on from.
        earlier = len(list(directory.glob("events.*.tfevents.*")))
        prefix = str(directory / f"events.start{earlier:06d}")
        self._file = EventsWriter(prefix, f".{os.getpid()}.{next(_writers)}")
        if resume_step is not None:
            self._write(resume_step + 1, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._write(step, summary=summary.scalar(name, value))

    def text(self, name: str, markdown: str) -> None:
        """A text panel."""
        self._write(0, summary=summary.text(name, markdown))

    def image(self, name: str, pixels: np.ndarray) -> None:
        """An image panel; pixels: uint8 [height, width, 3]."""
        self._write(0, summary=summary.image(name, pixels, dataformats="HWC"))

    def layout(self, charts: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        """What TensorBoard shows under "custom scalars": {category: {chart: tags}}."""
        lines = {
            category: {title: ["Multiline", list(tags)] for title, tags in by_title.items()}
            for category, by_title in charts.items()
        }
        self._write(0, summary=summary.custom_scalars(lines))

    def hparams(self, settings: Mapping[str, str | float], outcome: Mapping[str, float]) -> None:
        """This run's line in TensorBoard's table of hyperparameters: settings, and what they gave.

        tensorboardX's own add_hparams would make another run of it.
        """
        for part in summary.hparams(dict(settings), dict(outcome)):
            self._write(0, summary=part)
        self.scalars(0, outcome)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, step: int, **content: object) -> None:
        self._file.write_event(Event(wall_time=time.time(), step=step, **content))


class Log(NamedTuple):
    """Where numbers go: those that resuming repeats to the last bit, and those of the clock."""

    exact: list[Writer]
    timed: list[Writer]

    def extend(self, other: "Log") -> None:
        """Write to the other's writers too."""
        self.exact.extend(other.exact)
        self.timed.extend(other.timed)

    def flush(self) -> None:
        """Hand everything so far to the system."""
        for writer in self.exact + self.timed:
            writer.flush()


def last_step(path: Path) -> int:
    """The last step that a file of JSON lines holds; 0 where there is none."""
    steps = [_step(line) for line in _whole_lines(path)]
    return int(max((step for step in steps if math.isfinite(step)), default=0))


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _step(line: str) -> float:
    """The step of a line; infinite where it holds none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, LookupError, TypeError):
        return math.inf
