"""Ctrl-C and SIGTERM: noticed at once, obeyed between two units of work, or after a few seconds.

A signal handler that raised would do so wherever Python stands, also inside a callback of XLA,
which drops the exception. And it does not run while the main thread is in compiled code. So a
signal only sets a flag, which the work looks at; a thread ends the process if the work does not.
"""

import contextlib
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

from rope_jax.errors import Stopped, program

# Seconds from a signal, or from the last sign of life after it, to the end of the process. Units of
# work that take longer get twice their time, but schedulers send SIGKILL 30 s after SIGTERM.
GRACE, _LONGEST_GRACE = 5.0, 25.0
# A second signal within this time is taken for the same one: `timeout` and some launchers send it
# to the process and once more to its group.
_SAME_SIGNAL = 0.3
_SHOW_CURSOR = "\x1b[?25h"


class _Request:
    """Whether the process has been asked to stop, and how its work is getting on."""

    signal: int | None = None
    asked_at = math.inf
    seen_at = -math.inf  # when the work last looked
    unit = 0.0  # seconds between the last two looks; 0 before there are two
    uninterrupted = 0  # how many blocks are under way that must not be cut off


_request = _Request()


def requested() -> int | None:
    """Return the signal that asked this process to stop, or None.

    For work that has something to finish: a look after each unit puts off the process's end.
    """
    now = time.monotonic()
    if _request.seen_at != -math.inf:
        _request.unit = now - _request.seen_at
    _request.seen_at = now
    return _request.signal


def check() -> None:
    """Raise Stopped if this process has been asked to stop; for between two units of work."""
    if _request.signal is not None:
        raise Stopped("stopped; run the same command again to resume", _request.signal)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """For a block that takes as long as it takes, such as saving; only a second signal ends it."""
    _request.uninterrupted += 1
    try:
        yield
    finally:
        _request.seen_at = time.monotonic()
        _request.uninterrupted -= 1


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """In this block, Ctrl-C and SIGTERM set the flag that `requested` and `check` look at.

    The process ends at the second signal, or when the work has not looked for `GRACE` seconds.
    For the main thread of commands. A signal that the parent had this process ignore stays ignored.
    """
    global _request
    _request = _Request()
    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    # Python's C code writes each signal's number to the pipe as it comes, whatever runs meanwhile.
    pipe_before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in heard}
    watcher = threading.Thread(target=_watch, args=(readable, heard), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(pipe_before)
        os.close(writable)  # which ends the watcher
        watcher.join()
        os.close(readable)
        _request = _Request()


def _watch(readable: int, heard: list[signal.Signals]) -> None:
    """Record signals until the pipe is closed; end the process if the work does not stop."""
    while True:
        wait = None if _request.signal is None else 0.1
        if select.select([readable], [], [], wait)[0]:
            numbers = os.read(readable, 64)
            if not numbers:
                return
            for number in set(numbers) & set(heard):
                if _request.signal is None:
                    _request.signal, _request.asked_at = number, time.monotonic()
                    if sys.stderr is not None and sys.stderr.isatty():
                        _write("\nstopping as soon as nothing is lost; Ctrl-C again ends at once\n")
                elif time.monotonic() - _request.asked_at > _SAME_SIGNAL:
                    _end(_request.signal, "at once, by a second signal")
        if _request.signal is not None and not _request.uninterrupted:
            grace = max(GRACE, min(2 * _request.unit, _LONGEST_GRACE))
            if time.monotonic() > max(_request.asked_at, _request.seen_at) + grace:
                _end(_request.signal, "in the middle of a long step")


def _end(number: int, how: str) -> NoReturn:
    """End this process from any thread, without the clean-up that may be what hangs."""
    message = f"{program()}: stopped {how}; run the same command again to resume\n"
    if sys.stdout is not None and sys.stdout.isatty():  # a progress bar hides the cursor
        message = _SHOW_CURSOR + "\n" + message
    _write(message)
    os._exit(128 + number)


def _write(message: str) -> None:
    """Write to stderr past Python's buffers, whose locks another thread may hold."""
    with contextlib.suppress(OSError):
        os.write(2, message.encode(errors="replace"))
