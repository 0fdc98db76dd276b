"""One run in several processes, of which only the first one writes and prints.

JAX's coordination service in process 0 joins them. This adds what it lacks: a line instead of a
stack trace, and the news that a process has failed, before its heartbeats stop.
"""

import contextlib
import ipaddress
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from rope_jax import stopping
from rope_jax.config.devices import DistributedConfig
from rope_jax.errors import Stopped, UserError, program

# Seconds without a heartbeat after which a process counts as dead.
_HEARTBEAT = 40
# Seconds that processes have to exit by themselves after one has failed, so that an error common to
# all is printed by all. Process 0 exits last: without its service, JAX aborts the others.
_GRACE, _GRACE_OF_FIRST = 3.0, 5.0
# The key under which the service stores which process has failed.
_FAILED = "rope_jax/failed"
_LOST = (
    "{} has stopped, and the others cannot continue without it; its own output says why. Start all "
    "of them again to continue"
)


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
    if any_of(from_first(lambda: text) != text):
        raise UserError(f"{what}: differs between the processes; give all of them the same")


@contextlib.contextmanager
def joined(config: DistributedConfig | None) -> Iterator[None]:
    """Join the run's other processes, before jax touches a device; if one fails, all exit."""
    if config is None:
        yield
        return
    try:
        _connect(config)
    except BaseException as error:
        _exit_after(0.5, error)
        raise
    with _ending_together():
        yield


def _connect(config: DistributedConfig) -> None:
    """Initialize JAX in a thread: it waits past Ctrl-C, and at its own deadline it aborts."""
    bind = None if config.coordinator is None else _bind_address(config)
    failures: list[Exception] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                coordinator_address=config.coordinator,
                num_processes=config.num_processes,
                process_id=config.process_id,
                initialization_timeout=config.timeout + 60,
                heartbeat_timeout_seconds=_HEARTBEAT,
                coordinator_bind_address=bind,
            )
        except Exception as error:  # of many types: network, cluster variables
            failures.append(error)

    # The preemption service would catch SIGTERM and only record it.
    jax.config.update("jax_enable_preemption_service", False)
    thread = threading.Thread(target=initialize, daemon=True)
    thread.start()
    deadline = time.monotonic() + config.timeout
    where = config.coordinator or "the address that the cluster gives"
    while thread.is_alive():
        stopping.check()
        if time.monotonic() > deadline:
            of_all = f" of {config.num_processes}" if config.num_processes else ""
            raise UserError(
                f"distributed: after {config.timeout} s not all processes{of_all} have met at "
                f"{where}; start each process_id once, correct distributed.coordinator, or set "
                "distributed.timeout higher"
            )
        thread.join(0.1)
    for error in failures:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        advice = "" if config.coordinator else "; give coordinator, num_processes and process_id"
        raise UserError(f"distributed: cannot join the processes at {where}: {reason}{advice}")


def _bind_address(config: DistributedConfig) -> str:
    """Return the address at which process 0 listens: the one given, so that no other is opened.

    Every interface if a name other than localhost stands for this machine alone, as Debian's
    /etc/hosts has it for the machine's own name. UserError: unknown, or in use.
    """
    host, _, port = (config.coordinator or "").rpartition(":")
    host = host.strip("[]")
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(
            host,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_ADDRCONFIG,  # IPv6 if there is any
        )
        if config.process_id == 0:  # JAX would share a port with process 0 of another run
            socket.create_server(address[:2], family=family).close()
    except OSError as error:
        raise UserError(
            f"distributed.coordinator: {config.coordinator}: {error.strerror or error}; "
            "it must be an address of process 0's host, with a free port"
        ) from None
    if ipaddress.ip_address(address[0]).is_loopback and host not in ("localhost", address[0]):
        return f"[::]:{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def _ending_together() -> Iterator[None]:
    """In this block, the process exits if another one reports that it has failed."""
    from jax._src import distributed  # the service's store has no public name

    state = distributed.global_state
    store: Any = state.client
    grace, left = _GRACE if state.process_id else _GRACE_OF_FIRST, threading.Event()

    def lost() -> UserError | None:
        """Return the error that another process has reported, if any."""
        with contextlib.suppress(Exception):  # none has, or process 0 is gone and JAX ends this one
            return UserError(_LOST.format(store.key_value_try_get(_FAILED)))
        return None

    def exit_with_others() -> None:
        while not left.wait(1):
            if (error := lost()) and not left.wait(grace):
                print(f"{program()}: {error}", file=sys.stderr, flush=True)
                os._exit(2)

    thread = threading.Thread(target=exit_with_others, daemon=True)
    thread.start()
    try:
        try:
            yield
        finally:
            left.set()
            thread.join()  # Python must not end while a thread is in compiled code.
    except BaseException as error:
        if isinstance(error, Stopped) and error.together:
            raise
        cause, name = None, f"process {state.process_id} of {state.num_processes}"
        if not isinstance(error, (UserError, Stopped, KeyboardInterrupt)):
            time.sleep(1)  # Perhaps it failed because another process has: wait for news.
            cause = lost()
        if cause is None and re.search("Gloo|NCCL|coordination", str(error)):
            cause = UserError(_LOST.format("another process"))
        with contextlib.suppress(Exception):  # another one was faster, or the service is gone
            store.key_value_set(_FAILED, "another process" if cause else name)
        _exit_after(grace, cause or error)
        if cause:
            raise cause from None
        raise


def _exit_after(seconds: float, error: BaseException) -> None:
    """Exit a while after an error: at the end of Python, JAX would wait for the other processes."""
    status = 2 if isinstance(error, UserError) else 1
    if isinstance(error, (Stopped, KeyboardInterrupt)):
        status = 128 + getattr(error, "signal", signal.SIGINT)
    timer = threading.Timer(seconds, os._exit, [status])
    timer.daemon = True
    timer.start()
