"""Reading files that others wrote: never more than a limit, and never waiting for long."""

import errno
import os
import select
import stat
import time
from pathlib import Path

_PATIENCE = 10.0  # seconds in which a pipe has to be written


def read_limited(path: Path, most: int) -> bytes:
    """Return the content of a file, or of a pipe such as `<(command)`, of at most `most` bytes.

    OSError if it is larger, cannot be read, is a device, or is a pipe that nobody writes to.
    ValueError: a NUL character in the path.
    """
    # a pipe opens at once, even without a writer
    with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISFIFO(mode):
            content = _read_pipe(file.fileno(), most, str(path))
        elif stat.S_ISREG(mode):
            content = file.read(most + 1)
        else:
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    if content is None:  # a file in /proc that has nothing to say yet
        raise OSError(errno.EAGAIN, "not a regular file", str(path))
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content


def _read_pipe(descriptor: int, most: int, path: str) -> bytes:
    """Return what is written to a pipe until it is closed, or more than `most` bytes of it."""
    content, deadline = b"", time.monotonic() + _PATIENCE
    while len(content) <= most:
        try:
            chunk = os.read(descriptor, 2**16)
        except BlockingIOError:  # it has a writer, who has not written yet
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise OSError(
                    errno.ETIMEDOUT, f"a pipe not closed within {_PATIENCE:g} s", path
                ) from None
            continue
        if not chunk:
            break
        content += chunk
    if not content:
        raise OSError(errno.EINVAL, "a pipe that nothing is written to", path)
    return content
