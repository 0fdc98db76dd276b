"""The journal of a sweep on disk, from which an interrupted sweep resumes."""

import json
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from rope_jax.evaluation.sweep import JournalEntry
from rope_jax.runs.files import write_text


class FileJournal(MutableMapping[str, JournalEntry]):
    """A sweep's journal in a file of JSON lines; what was set survives the end of the process.

    The first line says what was measured: the checkpoint, the corpus, the device. An incomplete
    line is ignored, with all after it.
    """

    def __init__(self, path: Path | None, identity: str, text: str) -> None:
        """Start from `text`, which is what the file holds, provided that it is of `identity`.

        path: None keeps the journal in memory only. Every process of a sweep gets the same text,
        and only the first one the path.
        """
        self._path, self._entries = path, dict[str, JournalEntry]()
        kept = [json.dumps(identity)]
        first, *lines = text.split("\n")
        for line in lines[:-1] if first == kept[0] else ():  # what follows the last \n was cut off
            try:
                key, nats, seconds = json.loads(line)
            except (ValueError, TypeError):
                break
            self._entries[key] = JournalEntry(nats=nats, seconds=seconds)
            kept.append(line)
        if path is not None:  # written anew, so that no new line is appended to a cut one
            write_text(path, "\n".join(kept) + "\n")

    def __setitem__(self, key: str, entry: JournalEntry) -> None:
        self._entries[key] = entry
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps([key, *entry]) + "\n")

    def __getitem__(self, key: str) -> JournalEntry:
        return self._entries[key]

    def __delitem__(self, key: str) -> None:
        raise TypeError("a journal only grows")

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
