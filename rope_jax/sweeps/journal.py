"""The journal of a sweep on disk, from which an interrupted sweep resumes."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections import UserDict
from pathlib import Path

import jax

from rope_jax import __version__
from rope_jax.data.storage import Corpus
from rope_jax.devices.hardware import device_line
from rope_jax.errors import UserError
from rope_jax.evaluation import JournalEntry
from rope_jax.kernels.loading import load_kernels
from rope_jax.model.resolve import ResolvedRun, describe_precision
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import write_text
from rope_jax.sweeps.code import code_hash

_LIBRARIES = ("jax", "jaxlib", "flax", "numpy")
_DIGITS = 16  # of a line's checksum


class FileJournal(UserDict[str, JournalEntry]):
    """A sweep's journal in a file, whose entries survive a killed process.

    The first line identifies what was measured and by what: checkpoint, corpus, device, code. Each
    other line is a checksum, a space and one entry as JSON. A line that fails its checksum is
    ignored, with everything after it; `dropped` says so.
    """

    def __init__(self, path: Path | None, identity: str, text: str) -> None:
        """Start from `text`, the content of the file, if it has the same `identity`.

        path: only in the first process of a sweep; without it, the journal is kept in memory.
        """
        super().__init__()
        self._path, self._identity = path, json.dumps(identity)
        self._kept, self.dropped = [self._identity], ""
        first, *lines = text.split("\n")
        lines = lines[:-1]  # what follows the last line break was cut off
        is_same, reason = first == self._identity, "a checksum in the file is wrong"
        if not is_same:
            reason = (
                "the checkpoint, the corpus, the device, the settings or the code is another one"
            )
        for line in lines if is_same else []:
            checksum, _, content = line.partition(" ")
            if checksum != self._checksum(content):
                break
            key, *entry = json.loads(content)
            self.data[key] = JournalEntry(*entry)
            self._kept.append(line)
        if number := len(lines) - len(self):
            count = f"{number} measurement{'s were' if number > 1 else ' was'}"
            self.dropped = f"{count} dropped, because {reason}"

    def __setitem__(self, key: str, entry: JournalEntry) -> None:
        self.data[key] = entry
        if self._path is None:
            return
        content = json.dumps([key, *entry])
        try:
            if self._kept:  # rewritten once, so that no line is appended to an incomplete one
                write_text(self._path, "\n".join(self._kept) + "\n")
                self._kept = []
            # never created here: without its first line, a journal says nothing
            with open(self._path, "r+", encoding="utf-8") as file:
                file.seek(0, os.SEEK_END)
                file.write(f"{self._checksum(content)} {content}\n")
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot be written ({error.strerror or error}); once that is fixed, "
                "the same command continues with the measurements in it"
            ) from error

    def _checksum(self, content: str) -> str:
        """Return the checksum of an entry; one from another journal fails it too."""
        text = f"{self._identity}\n{content}"
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGITS]


def journal_identity(
    run: RunDirectory, training: ResolvedRun, corpus: Corpus, split: str, step: int
) -> str:
    """Return one line that differs for measurements that may differ."""
    written = 0  # the checkpoint may be gone: a run in progress deletes old ones
    with contextlib.suppress(FileNotFoundError):
        written = (run.checkpoints / str(step)).stat().st_mtime_ns
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    parts = (
        *(step, written, corpus.fingerprint, split, __version__, code_hash()),
        *(importlib.metadata.version(name) for name in _LIBRARIES),
        *(precision, os.environ.get("XLA_FLAGS", "")),
        *(device_line(describe_precision(training.model)), training.model_dump_json()),
        load_kernels(),
    )
    return " ".join(map(str, parts))
