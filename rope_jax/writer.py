"""Where numbers go: JSON lines and TensorBoard, behind one small protocol."""

import itertools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from tensorboardX import SummaryWriter

_writers = itertools.count()


class Writer(Protocol):
    """Something that records scalars by step."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Record values at a step."""

    def close(self) -> None:
        """Flush and close."""


class JsonLinesWriter:
    """One JSON object a line; a line is whole or absent."""

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        """Goes on after `resume_step`: later lines, and a torn last one, are dropped."""
        kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= resume_step]
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

    def close(self) -> None:
        self._file.close()


class TensorBoardWriter:
    """An event file in a directory of its own run."""

    def __init__(self, directory: Path, resume_step: int | None = None) -> None:
        """Going on after `resume_step` hides what earlier attempts logged past it."""
        self._writer = SummaryWriter(
            str(directory),
            purge_step=None if resume_step is None else resume_step + 1,
            # files are named by host and second: two in one second would overwrite each other
            filename_suffix=f".{os.getpid()}.{next(_writers)}",
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def text(self, name: str, markdown: str) -> None:
        """A text panel."""
        self._writer.add_text(name, markdown)

    def image(self, name: str, pixels: np.ndarray) -> None:
        """An image panel; pixels: uint8 [height, width, 3]."""
        self._writer.add_image(name, pixels, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
