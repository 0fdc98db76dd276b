"""Classifying, shortening and silencing the errors of Orbax and TensorStore."""

import functools
import inspect
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What every message of TensorStore's begins with.
_STATUS_CODE = re.compile(r"([A-Z]+(?:_[A-Z]+)*): ")
# It is one of these if the files' content is at fault.
_DAMAGE_CODES = {"DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND"}
_DAMAGE_CODES |= {"OUT_OF_RANGE"}
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# Raised by decoding. JSON, UTF-8 and TensorStore errors are all ValueErrors.
_UNDECODABLE = (ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError)


def shows_damage(error: Exception) -> bool:
    """Whether an error raised while reading is evidence that the files are damaged.

    True if a file is absent, does not decode, or is not what was saved. False if the system could
    not read it (too many open files, an I/O error, out of memory), or if the error is unknown.
    """
    for cause in _chain(error):
        if isinstance(cause, MemoryError):
            return False
        if isinstance(cause, OSError) and not isinstance(cause, _ABSENT):
            return False
    if code := _STATUS_CODE.match(str(error)):
        return code[1] in _DAMAGE_CODES
    return isinstance(error, (*_ABSENT, *_UNDECODABLE))


def brief_reason(error: Exception) -> str:
    """Shorten an error's message to its beginning and its end, which names the cause.

    TensorStore puts long paths in between, and appends a specification, which is dropped.
    """
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    text = " ".join(str(message).split("[tensorstore_spec")[0].split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:60]} … {text[-90:].strip()}"


@functools.cache
def drop_leftovers(package: Path) -> None:
    """Silence the reads and writes that Orbax abandons when one of them fails.

    Orbax raises the failure itself, which is reported in one line. Each abandoned coroutine would
    print another traceback seconds later, from whichever thread or garbage collection ends it.
    Only log records and exceptions from `package` (Orbax's folder) and from TensorStore, which
    Orbax reads and writes with, are dropped.
    """
    origin = str(package)
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(lambda record: not _is_logged_by(record, origin))
    # Python warns of a coroutine that was never begun. The warning tells only the coroutine's name,
    # but Orbax is the only one in these commands that has any.
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not _is_abandoned(unraisable, origin):
            before(unraisable)

    sys.unraisablehook = hook


def _is_logged_by(record: logging.LogRecord, origin: str) -> bool:
    """Whether a record was logged by code below `origin`, or by asyncio about its operations."""
    if record.pathname.startswith(origin):
        return True
    if record.name == "asyncio" and record.exc_info:
        _, error, trace = record.exc_info
        frames = traceback.extract_tb(trace)
        # a TensorStore future's error was never raised, but it begins with a status code
        if any(frame.filename.startswith(origin) for frame in frames) or (
            not frames and _STATUS_CODE.match(str(error))
        ):
            return True
    # the message about a task names its coroutine's file
    return record.name == "asyncio" and f"defined at {origin}" in record.getMessage()


def _is_abandoned(unraisable: Any, origin: str) -> bool:
    """Whether an unraisable exception comes from an operation that Orbax abandoned."""
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
    """Yield an error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
