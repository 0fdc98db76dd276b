"""One run in several processes, on one host or many.

Every process runs the same program on the same config; only the first one writes and prints.
"""

import hashlib
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from rope_jax.errors import UserError

_LONGEST_MESSAGE = 2000


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return jax.process_index() == 0


def on_first(action: Callable[[], object]) -> None:
    """Call `action` on the first process only. If it fails, all processes raise its UserError."""
    message = ""
    if is_first():
        try:
            action()
        except UserError as error:
            message = str(error)
        except OSError as error:
            message = f"{error.filename or 'a file'}: cannot be written ({error.strerror})"
    if jax.process_count() == 1:
        if message:
            raise UserError(message)
        return
    raw = np.frombuffer(message.encode()[:_LONGEST_MESSAGE].ljust(_LONGEST_MESSAGE), np.uint8)
    message = multihost_utils.broadcast_one_to_all(raw).tobytes().decode(errors="replace").strip()
    if message:
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
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def smallest(number: float | int) -> float | int:
    """Return the smallest of all processes' numbers. All of them must call this together."""
    if jax.process_count() == 1:
        return number
    # as bytes: jax would round a float64 to float32
    mine = np.frombuffer(np.float64(number).tobytes(), np.uint8)
    return float(
        np.ascontiguousarray(multihost_utils.process_allgather(mine)).view(np.float64).min()
    )


def check_same(what: str, text: str) -> None:
    """UserError unless `text` is the same in every process. what: its name in the message."""
    if jax.process_count() == 1:
        return
    mine = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    if len(np.unique(multihost_utils.process_allgather(mine), axis=0)) > 1:
        raise UserError(f"{what}: differs between the processes; give all of them the same")
