"""The journal of a sweep on disk, from which an interrupted sweep resumes."""

import hashlib
import json
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from rope_jax.errors import UserError
from rope_jax.evaluation.sweep import JournalEntry
from rope_jax.sealed import write_text

_DIGITS = 16  # of a line's checksum


class FileJournal(MutableMapping[str, JournalEntry]):
    """A sweep's journal in a file, whose entries survive a killed process.

    The first line identifies what was measured and by what: checkpoint, corpus, device, code. Each
    other line is a checksum, a space and one entry as JSON. A line that is incomplete or fails its
    checksum is ignored, with everything after it. The file is made by the first new entry, so a
    sweep that is refused before it leaves none.

    dropped: how many lines were ignored, and why; "" if none was.
    """

    def __init__(self, path: Path | None, identity: str, text: str) -> None:
        """Start from `text`, the content of the file, if it has the same `identity`.

        path: None keeps the journal in memory only. Every process of a sweep gets the same text,
        but only the first gets the path.
        """
        self._path, self._identity = path, json.dumps(identity)
        self._entries = dict[str, JournalEntry]()
        first, *lines = text.split("\n")
        lines = lines[:-1]  # what follows the last line break was cut off
        self._kept = [self._identity]
        self.dropped = ""
        if lines and first != self._identity:
            self.dropped = (
                f"{_count(len(lines))} dropped, because the checkpoint, the corpus, the device, "
                "the settings or the code is another one"
            )
            return
        for line in lines:
            try:
                key, *entry = self._read(line)
            except ValueError:
                break
            self._entries[key] = JournalEntry(*entry)
            self._kept.append(line)
        if damaged := len(lines) - len(self._entries):
            self.dropped = f"{_count(damaged)} dropped, because a checksum in the file is wrong"

    def __setitem__(self, key: str, entry: JournalEntry) -> None:
        """Add an entry. UserError: the file cannot be written."""
        self._entries[key] = entry
        if self._path is None:
            return
        content = json.dumps([key, *entry])
        try:
            if self._kept:  # rewritten once, so that no line is appended to an incomplete one
                write_text(self._path, "\n".join(self._kept) + "\n")
                self._kept = []
            # never created here: without its first line, a journal says nothing
            with open(self._path, "a", encoding="utf-8", opener=_open_existing) as file:
                file.write(f"{self._checksum(content)} {content}\n")
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot be written ({error.strerror or error}); once that is fixed, "
                "the same command continues with the measurements in it"
            ) from error

    def __getitem__(self, key: str) -> JournalEntry:
        return self._entries[key]

    def __delitem__(self, key: str) -> None:
        raise TypeError("a journal only grows")

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _read(self, line: str) -> list:
        """Return the entry of a line; ValueError if it is damaged."""
        checksum, _, content = line.partition(" ")
        if checksum != self._checksum(content):
            raise ValueError
        return json.loads(content)

    def _checksum(self, content: str) -> str:
        """Return the checksum of an entry; one from another journal fails it too."""
        text = f"{self._identity}\n{content}"
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:_DIGITS]


def _open_existing(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_CREAT)


def _count(number: int) -> str:
    return f"{number} measurement{'s were' if number > 1 else ' was'}"
