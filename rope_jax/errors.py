"""Exceptions that are not bugs, shown as one line without a traceback; text made printable."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

INSTALLED = "rope-jax"
_MAX_CHARACTERS = 1000  # a message may quote a file with megabytes in one line
# What XLA, TensorStore and the C++ library write when an allocation fails.
_SHORTAGES = ("RESOURCE_EXHAUSTED", "bad_alloc", "out of memory", "OUT_OF_MEMORY")

GO_ON = "used", "what is done is kept, and once that is fixed, the same command continues"
"""For `file_errors`, where work that is under way writes."""


def program() -> str:
    """Return the command as messages name it: "train.py", or "rope-jax sweep"."""
    name = os.path.basename(sys.argv[0])
    if name not in (INSTALLED, "__main__.py"):
        return name
    return " ".join([INSTALLED, *(word for word in sys.argv[1:2] if word[:1] != "-")])


def printable(text: str) -> str:
    r"""Return text as one line that a terminal shows and never obeys: an escape as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class UserError(Exception):
    """Bad input; exit status 2. One line: the key or file, what is wrong, what would be right."""

    def __init__(self, message: str) -> None:
        line = printable(message[: _MAX_CHARACTERS + 1].strip())
        is_long = len(line) > _MAX_CHARACTERS
        super().__init__(line[: _MAX_CHARACTERS - 3] + "..." if is_long else line)


@contextlib.contextmanager
def errors_in(
    prefix: str, raised: type[Exception] = ValueError, caught: type[Exception] = ValueError
) -> Iterator[None]:
    """In this block, an exception is raised with `prefix`, such as "rope.", before its message."""
    try:
        yield
    except caught as error:
        raise raised(prefix + " ".join(str(error).split())) from error


@contextlib.contextmanager
def file_errors(path: Path | str, done: str = "read", advice: str = "") -> Iterator[None]:
    """In this block, where `path` is read or written, an OSError becomes a UserError."""
    try:
        yield
    except OSError as error:
        file, why = error.filename2 or error.filename or path, error.strerror or error
        message = f"{file}: cannot be {done} ({why})"
        raise UserError(f"{message}; {advice}" if advice else message) from error


@contextlib.contextmanager
def shortage_as(message: str) -> Iterator[None]:
    """Turn an error that says there is too little memory into a UserError with this message."""
    try:
        yield
    except UserError:  # it says what was being done
        raise
    except Exception as error:
        if not isinstance(error, MemoryError) and not any(s in str(error) for s in _SHORTAGES):
            raise
        raise UserError(message) from error


class Stopped(BaseException):
    """The work ended cleanly after a signal; exit status 128 + signal.

    Like KeyboardInterrupt it is not an Exception, so code that handles errors lets it pass.
    together: all processes of the run agreed to stop, so none waits for another.
    """

    def __init__(self, message: str, signal: int, together: bool = False) -> None:
        super().__init__(message)
        self.signal, self.together = signal, together
