"""The journal of a sweep on disk, from which an interrupted sweep resumes."""

import contextlib
import importlib.metadata
import json
import os
from collections import UserDict
from pathlib import Path

import jax

from rope_jax import __version__
from rope_jax.config.resolve import ResolvedRun, describe_precision
from rope_jax.data.storage import Corpus
from rope_jax.devices.hardware import device_line
from rope_jax.errors import GO_ON, file_errors
from rope_jax.evaluation.measure import JournalEntry
from rope_jax.kernels.loading import load_kernels
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import code_hash, write_text

_LIBRARIES = ("jax", "jaxlib", "flax", "numpy")


class FileJournal(UserDict[str, JournalEntry]):
    """A sweep's journal in a file, whose entries survive a killed process.

    The first line identifies what was measured and by what: checkpoint, corpus, device, code;
    `dropped` says what is ignored because that has changed. Each other line is one entry as JSON.
    A line that a crash has torn is ignored, with everything after it.
    """

    def __init__(self, path: Path | None, identity: str, text: str) -> None:
        """Start from `text`, the content of the file, if it has the same `identity`.

        path: only in the first process of a sweep; without it, the journal is kept in memory.
        """
        super().__init__()
        self._path, self._identity, self.dropped = path, json.dumps(identity), ""
        self._unwritten = [self._identity]
        first, *lines = text.split("\n")
        lines = lines[:-1]  # the last line break ends a line
        if first == self._identity:
            with contextlib.suppress(ValueError):
                for line in lines:
                    key, *entry = json.loads(line)
                    self.data[key] = JournalEntry(*entry)
                    self._unwritten.append(line)
        elif lines:
            were = "s were" if len(lines) > 1 else " was"
            self.dropped = (
                f"{len(lines)} measurement{were} dropped, because the checkpoint, the corpus, the "
                "device, the settings or the code is another one"
            )

    def __setitem__(self, key: str, entry: JournalEntry) -> None:
        self.data[key] = entry
        if self._path is None:
            return
        with file_errors(self._path, *GO_ON):
            if self._unwritten:  # once, so that no line is appended to an incomplete one
                write_text(self._path, "\n".join(self._unwritten) + "\n")
                self._unwritten = []
            # never created here: without its first line, a journal says nothing
            with open(self._path, "r+", encoding="utf-8") as file:
                file.seek(0, os.SEEK_END)
                file.write(json.dumps([key, *entry]) + "\n")


def journal_identity(
    run: RunDirectory, training: ResolvedRun, corpus: Corpus, split: str, step: int
) -> str:
    """Return one line that differs for measurements that may differ."""
    return f"{model_identity(run, training, step)} {corpus.fingerprint} {split}"


def model_identity(run: RunDirectory, training: ResolvedRun, step: int) -> str:
    """Return one line that differs for checkpoints, settings or code that may read differently."""
    written = 0  # the checkpoint may be gone: a run in progress deletes old ones
    with contextlib.suppress(FileNotFoundError):
        written = (run.checkpoints / str(step)).stat().st_mtime_ns
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    parts = (
        *(step, written, __version__, code_hash()),
        *(importlib.metadata.version(name) for name in _LIBRARIES),
        *(precision, os.environ.get("XLA_FLAGS", "")),
        device_line(describe_precision(training.model)),  # with the product_dtype
        training.model_dump_json(exclude={"model": {"product_dtype"}}),
        load_kernels(),
    )
    return " ".join(map(str, parts))
