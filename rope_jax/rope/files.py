"""Reading files that others wrote: never more than a limit, and never waiting for a device."""

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes.

    OSError if it is larger, cannot be read, or is no regular file: reading a pipe or a device may
    wait for ever. ValueError: a NUL character in the path.
    """
    # A pipe without a writer is opened at once, a file behaves as usual.
    with open(path, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(most + 1)
    if content is None:  # a file in /proc that has nothing to say yet
        raise OSError(errno.EAGAIN, "not a regular file", str(path))
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
