"""One run in several processes, of which only the first one writes and prints."""

import hashlib
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from rope_jax.errors import UserError


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return jax.process_index() == 0


def on_first(action: Callable[[], object]) -> None:
    """Call `action` on the first process only. If it fails, all processes raise its UserError."""

    def attempt() -> str:
        try:
            action()
        except UserError as error:
            return str(error)
        except OSError as error:
            return f"{error.filename or 'a file'}: cannot be written ({error.strerror})"
        return ""

    if message := from_first(attempt):
        raise UserError(message)


def from_first(make: Callable[[], str]) -> str:
    """Call `make` on the first process only, and return its text in every process."""
    raw = make().encode() if is_first() else b""
    if jax.process_count() == 1:
        return raw.decode()
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(raw))))
    padded = np.frombuffer(raw.ljust(size + 1, b"\0"), np.uint8)
    return multihost_utils.broadcast_one_to_all(padded).tobytes()[:size].decode()


def any_of(flag: bool) -> bool:
    """Whether `flag` is set in any process. All processes must call this together."""
    return smallest(not flag) == 0


def smallest(number: float | int) -> float | int:
    """Return the smallest of all processes' numbers. All of them must call this together."""
    if jax.process_count() == 1:
        return number
    # as bytes: jax would round a float64 to float32
    mine = np.frombuffer(np.float64(number).tobytes(), np.uint8)
    gathered = np.ascontiguousarray(multihost_utils.process_allgather(mine))
    return float(gathered.view(np.float64).min())


def check_same(what: str, text: str) -> None:
    """UserError unless `text` is the same in every process. what: its name in the message."""
    if jax.process_count() == 1:
        return
    mine = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    if len(np.unique(multihost_utils.process_allgather(mine), axis=0)) > 1:
        raise UserError(f"{what}: differs between the processes; give all of them the same")
