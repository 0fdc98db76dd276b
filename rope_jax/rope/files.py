"""Reading files that others wrote: never more than a limit, and no devices."""

import errno
import os
import stat
from pathlib import Path


def read_limited(path: Path, most: int) -> bytes:
    """Return the content of a file, or of a pipe such as `<(command)`, of at most `most` bytes.

    OSError if it is larger, cannot be read, is a device, or is a pipe that nobody writes to.
    ValueError: a NUL character in the path.
    """
    # a pipe opens at once, even without a writer
    with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        os.set_blocking(file.fileno(), True)
        content = file.read(most + 1)
    if stat.S_ISFIFO(mode) and not content:
        raise OSError(errno.EINVAL, "a pipe that nothing is written to", str(path))
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content
