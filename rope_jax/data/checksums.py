"""Checksums of files, one CRC-32 per block: computed while writing, compared when reading."""

import os
import zlib
from concurrent.futures import Executor
from pathlib import Path
from typing import BinaryIO

BLOCK = 2**20
"""Bytes that one checksum covers. It is part of the format of a manifest."""


class ChecksummedFile:
    """A file being written from beginning to end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._finished: list[int] = []
        self._checksum, self._filled = 0, 0  # of the last block, which is not full yet
        self.size = 0
        """Bytes written so far."""

    def write(self, data: bytes) -> None:
        """Append bytes. OSError if they cannot be written."""
        self._file.write(data)
        self.size += len(data)
        rest = memoryview(data)
        while rest:
            room = BLOCK - self._filled
            self._checksum = zlib.crc32(rest[:room], self._checksum)
            self._filled += len(rest[:room])
            rest = rest[room:]
            if self._filled == BLOCK:
                self._finished.append(self._checksum)
                self._checksum, self._filled = 0, 0

    def checksums(self) -> list[int]:
        """Return the checksum of every block written so far; the last block may be short."""
        return self._finished + [self._checksum] * bool(self._filled)


def read_checksums(path: Path, size: int, threads: Executor) -> list[int]:
    """Return the checksum of every block of the first `size` bytes of a file.

    Both reading and zlib release the interpreter's lock, so threads run in parallel.

    Raises OSError if the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY)

    def checksum(offset: int) -> int:
        return zlib.crc32(os.pread(descriptor, min(BLOCK, size - offset), offset))

    try:
        return list(threads.map(checksum, range(0, size, BLOCK)))
    finally:
        os.close(descriptor)
