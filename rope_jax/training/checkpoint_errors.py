"""What goes wrong when Orbax reads or writes a checkpoint: what it means, and what it prints."""

import functools
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Status codes that begin TensorStore's messages where the files' content is at fault.
_DAMAGE_CODES = {"DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND"}
_DAMAGE_CODES |= {"OUT_OF_RANGE"}
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# What decoding raises: JSON and UTF-8 errors are ValueErrors, as TensorStore's own errors are.
_UNDECODABLE = (ValueError, LookupError, TypeError, AttributeError, EOFError)


def shows_damage(error: Exception) -> bool:
    """Whether an error of reading is evidence that the files themselves are damaged.

    It is where a file is absent, does not decode, or is not what was saved. It is not where the
    system failed to read it: too many open files, an I/O error, no memory, or an unknown error.
    """
    for cause in _chain(error):
        if isinstance(cause, MemoryError):
            return False
        if isinstance(cause, OSError) and not isinstance(cause, _ABSENT):
            return False
    if code := re.match(r"([A-Z]+(?:_[A-Z]+)*): ", str(error)):
        return code[1] in _DAMAGE_CODES
    return isinstance(error, (*_ABSENT, *_UNDECODABLE))


def brief_reason(error: Exception) -> str:
    """Shorten an error to the end of its message, which names the cause.

    TensorStore's messages begin with long paths.
    """
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    text = " ".join(str(message).split("[tensorstore_spec")[0].split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:60]} … {text[-90:].strip()}"


@functools.cache
def drop_leftovers(package: Path) -> None:
    """Keep quiet about the reads and writes that Orbax abandons when one of them fails.

    Orbax raises the failure itself, which is reported in one line. Each abandoned coroutine would
    print a traceback of its own, seconds later, from whatever thread or garbage collection ends
    it. Only records and exceptions that come from `package` (Orbax's folder) or from TensorStore,
    which it reads with, are dropped; those of everything else are shown as before.
    """
    origin = str(package)
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(lambda record: not _is_logged_by(record, origin))
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not _is_abandoned(unraisable, origin):
            before(unraisable)

    sys.unraisablehook = hook


def _is_logged_by(record: logging.LogRecord, origin: str) -> bool:
    """Whether code below `origin` logged a record, or asyncio did about an operation of its own."""
    if record.pathname.startswith(origin):
        return True
    # a task names the file of its coroutine; TensorStore's futures name their specification
    marks = f"defined at {origin}", "[tensorstore_spec="
    return record.name == "asyncio" and any(mark in record.getMessage() for mark in marks)


def _is_abandoned(unraisable: Any, origin: str) -> bool:
    if inspect.iscoroutine(unraisable.object):
        return unraisable.object.cr_code.co_filename.startswith(origin)
    # TensorStore's threads, which run no Python code, report to Orbax's event loop, now closed.
    frames = traceback.extract_tb(unraisable.exc_traceback, limit=1)
    return (
        unraisable.object is None
        and str(unraisable.exc_value) == "Event loop is closed"
        and [frame.name for frame in frames] == ["call_soon_threadsafe"]
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
