"""What an interrupted sweep leaves, so that the next one goes on where it was."""

import json
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from rope_jax.runs.files import write_text

Figures = tuple[list[float], float]


class FileJournal(MutableMapping[str, Figures]):
    """A journal of `sweep` in a file of JSON lines; what is set is there if the process is killed.

    The first line says what it is a journal of. A line is whole, or it counts for nothing.
    """

    def __init__(self, path: Path | None, identity: str, text: str) -> None:
        """path: None keeps it in memory; text: what the file holds, in every process the same.

        What was measured of anything but `identity` is dropped.
        """
        self._path, self._known = path, dict[str, Figures]()
        kept = [json.dumps(identity)]
        first, *lines = text.split("\n")
        for line in lines[:-1] if first == kept[0] else ():  # after the last break: was cut off
            try:
                key, nats, seconds = json.loads(line)
            except (ValueError, TypeError):
                break
            self._known[key] = nats, seconds
            kept.append(line)
        self.found = len(self._known)
        if path is not None:  # else what is added would follow on a cut line
            write_text(path, "\n".join(kept) + "\n")

    def __setitem__(self, key: str, figures: Figures) -> None:
        self._known[key] = figures
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps([key, *figures]) + "\n")

    def __getitem__(self, key: str) -> Figures:
        return self._known[key]

    def __delitem__(self, key: str) -> None:
        raise TypeError("a journal only grows")

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
