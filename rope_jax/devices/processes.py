"""One run in several processes, of which only the first one writes and prints.

JAX's coordination service in process 0 joins them, and ends the others when one is gone. This adds
a line instead of a stack trace.
"""

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax._src import distributed  # the process's number has no public name
from jax.experimental import multihost_utils

from rope_jax.config.devices import DistributedConfig
from rope_jax.errors import Stopped, UserError, program

# Seconds without a heartbeat after which a process counts as dead.
_HEARTBEAT = 40
# Seconds until a process that has failed exits, so that an error common to all is printed by all.
# Process 0 exits last: without its service, JAX aborts the others.
_GRACE, _GRACE_OF_FIRST = 3.0, 5.0


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

    if message := broadcast_from_host0(attempt):
        raise UserError(message)


def broadcast_from_host0(make: Callable[[], str]) -> str:
    """Call `make` on the first process only, and return its text in every process."""
    raw = make().encode() if is_first() else b""
    if jax.process_count() == 1:
        return raw.decode()
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(raw))))
    padded = np.frombuffer(raw.ljust(size + 1, b"\0"), np.uint8)
    return multihost_utils.broadcast_one_to_all(padded).tobytes()[:size].decode()


def any_host(flag: bool) -> bool:
    """Whether `flag` is set in any process. All processes must call this together."""
    return min_over_hosts(not flag) == 0


def min_over_hosts(number: float | int) -> float | int:
    """Return the smallest of all processes' numbers. All of them must call this together."""
    if jax.process_count() == 1:
        return number
    # as bytes: jax would round a float64 to float32
    mine = np.frombuffer(np.float64(number).tobytes(), np.uint8)
    gathered = np.ascontiguousarray(multihost_utils.process_allgather(mine))
    return float(gathered.view(np.float64).min())


def check_same(what: str, text: str) -> None:
    """UserError unless `text` is the same in every process. what: its name in the message."""
    if any_host(broadcast_from_host0(lambda: text) != text):
        raise UserError(f"{what}: differs between the processes; give all of them the same")


@contextlib.contextmanager
def initialize(config: DistributedConfig | None) -> Iterator[None]:
    """Join the run's other processes, before jax touches a device; one that fails exits alone.

    At the end of Python, JAX would wait for the others, which wait for this one.
    """
    if config is None:
        yield
        return
    try:
        _connect(config)
    except BaseException as error:
        _exit_after(0.5, error)
        raise
    try:
        yield
    except BaseException as error:
        if isinstance(error, Stopped) and error.together:
            raise
        if isinstance(error, Exception) and re.search("Gloo|NCCL|coordination", str(error)):
            error = UserError(
                "another process has stopped, and this one cannot continue without it; its own "
                "output says why. Start all of them again to continue"
            )
        # not is_first(), which waits for the others where jax has touched no device yet
        is_host0 = distributed.global_state.process_id == 0
        _exit_after(_GRACE_OF_FIRST if is_host0 else _GRACE, error)
        raise error from None


def _connect(config: DistributedConfig) -> None:
    """Initialize JAX. UserError: it cannot; at the timeout, the process exits with a line."""
    where = config.coordinator or "the address that the cluster gives"

    def give_up() -> None:
        of_all = f" of {config.num_processes}" if config.num_processes else ""
        print(
            f"{program()}: distributed: after {config.timeout} s not all processes{of_all} have "
            f"met at {where}; start each process_id once, correct distributed.coordinator, or set "
            "distributed.timeout higher",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)

    # The preemption service would catch SIGTERM and only record it.
    jax.config.update("jax_enable_preemption_service", False)
    timer = threading.Timer(config.timeout, give_up)  # at its own deadline, JAX aborts
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            coordinator_address=config.coordinator,
            num_processes=config.num_processes,
            process_id=config.process_id,
            initialization_timeout=config.timeout + 60,
            heartbeat_timeout_seconds=_HEARTBEAT,
        )
    except Exception as error:  # of many types: network, cluster variables
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        advice = "" if config.coordinator else "; give coordinator, num_processes and process_id"
        raise UserError(
            f"distributed: cannot join the processes at {where}: {reason}{advice}"
        ) from None
    finally:
        timer.cancel()


def _exit_after(seconds: float, error: BaseException) -> None:
    """Exit a while after an error, whatever the end of Python waits for."""
    status = 2 if isinstance(error, UserError) else 1
    if isinstance(error, (Stopped, KeyboardInterrupt)):
        status = 128 + getattr(error, "signal", signal.SIGINT)
    timer = threading.Timer(seconds, os._exit, [status])
    timer.daemon = True
    timer.start()
