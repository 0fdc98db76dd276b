"""Classifying, shortening and silencing the errors of Orbax and TensorStore."""

import functools
import logging
import re
import sys
import traceback
import warnings
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
    """Whether an error shows that files are damaged, not that the system cannot read them."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | OSError) and not isinstance(cause, _ABSENT):
            return False
        cause = cause.__cause__ or cause.__context__
    if code := _STATUS_CODE.match(str(error)):
        return code[1] in _DAMAGE_CODES
    return isinstance(error, (*_ABSENT, *_UNDECODABLE))


def brief_reason(error: Exception) -> str:
    """Shorten an error's message to its beginning and its end, which names the cause."""
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    text = " ".join(str(message).split("[tensorstore_spec")[0].split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:60]} … {text[-90:].strip()}"


@functools.cache
def drop_leftovers(package: Path) -> None:
    """Silence the reads and writes that Orbax abandons when one of them fails.

    Orbax raises the failure itself. Each abandoned coroutine would print another traceback seconds
    later. Only what names `package` (Orbax's folder) or comes from TensorStore is dropped.
    """
    origin, show = str(package), sys.unraisablehook

    def is_of_others(record: logging.LogRecord) -> bool:
        _, error, frames = record.exc_info or (None, None, None)
        if frames is None and _STATUS_CODE.match(str(error)):  # of TensorStore, never raised
            return False
        trace = "".join(traceback.format_tb(frames))
        return origin not in f"{record.pathname} {record.getMessage()} {trace}"

    def show_others(unraisable: Any) -> None:
        code = getattr(unraisable.object, "cr_code", None)  # of a coroutine
        # TensorStore's threads, which run no Python code, report to Orbax's event loop, now closed
        is_late = unraisable.object is None and str(unraisable.exc_value) == "Event loop is closed"
        if not is_late and not (code and code.co_filename.startswith(origin)):
            show(unraisable)

    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(is_of_others)
    # Python warns of a coroutine that was never begun. The warning tells only the coroutine's name,
    # but Orbax is the only one in these commands that has any.
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    sys.unraisablehook = show_others
