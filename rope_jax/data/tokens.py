"""One split of a corpus: a stream of tokens on disk, and where its documents begin.

The file may be changed by others while it is mapped, so what is read from it is checked.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.errors import UserError


class FileState(NamedTuple):
    """Which file has a name, and when it was last changed."""

    device: int
    inode: int
    size: int
    modified: int
    """In nanoseconds."""

    @classmethod
    def of(cls, path: Path) -> "FileState":
        """Return the present state. Raises OSError."""
        status = path.stat()
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, eq=False)
class TokenSplit:
    """One split. Shapes: D documents, N tokens in all of them, any document starts included."""

    tokens: NDArray[np.unsignedinteger[Any]]
    """[N], a read-only memory map; `read` returns parts of it checked."""
    starts: NDArray[np.int64]
    """[D + 1]: where the tokens of each document begin, and N."""
    ids: list[str]
    """[D]: where each document was found: a path, path:line, path:row or split:row."""
    path: Path
    """The file that is mapped."""
    opened: FileState
    """The file's state when it was mapped."""
    vocab_size: int
    """Every token is below it."""
    bos_id: int | None
    """The token that every document starts with; None: documents have no start token."""
    bytes_per_token: float | None
    """Bytes of UTF-8 per token, document starts left out, to convert nats into bits per byte;
    None if there are no such tokens."""

    def __len__(self) -> int:
        """Return D, the number of documents."""
        return len(self.ids)

    def read(self, begin: int, end: int) -> NDArray[np.unsignedinteger[Any]]:
        """Return a copy of the tokens from offset `begin` up to `end`.

        Raises UserError if the file was changed since it was mapped.
        """
        # Before reading: past the end of a file that was shortened, that would kill the process.
        if self._is_changed():
            raise self._changed("its size or time of modification is another")
        tokens = np.array(self.tokens[begin:end])
        if tokens.size and tokens.max() >= self.vocab_size:
            raise self._changed(f"token {tokens.max()} is not in the vocabulary")
        return tokens

    def document(self, index: int) -> NDArray[np.unsignedinteger[Any]]:
        """Return a copy of the tokens of document `index`, its start token, if any, first.

        Raises IndexError if there is no such document, and UserError as `read` does.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        return self.read(int(self.starts[index]), int(self.starts[index + 1]))

    def texts(self) -> list[NDArray[np.unsignedinteger[Any]]]:
        """Return the tokens of every document, without start tokens. Raises UserError as `read`."""
        first = 0 if self.bos_id is None else 1
        return [self.document(index)[first:] for index in range(len(self))]

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens in each document, any start token included: int64 [D]."""
        return np.diff(self.starts)

    def _is_changed(self) -> bool:
        try:
            now = FileState.of(self.path)
        except OSError:  # it was deleted, but the map lasts
            return False
        # If it was replaced by another file, the map is still of the old one.
        is_same_file = now[:2] == self.opened[:2]
        return is_same_file and now != self.opened

    def _changed(self, how: str) -> UserError:
        return UserError(
            f"data.cache_dir: {self.path} was changed while it was being read ({how}); run the "
            "same command again, which writes the tokens again"
        )
