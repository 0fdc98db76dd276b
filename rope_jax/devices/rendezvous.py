"""How the processes of one run find each other, and how they notice that one of them is gone.

JAX's coordination service in process 0 does both. This adds what it lacks: a line instead of a
stack trace, and the news that a process has failed, before its heartbeats stop.
"""

import contextlib
import errno
import ipaddress
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from rope_jax import stopping
from rope_jax.config.devices import DistributedConfig
from rope_jax.errors import Stopped, UserError
from rope_jax.invocation import program

# Seconds without a heartbeat after which a process counts as dead.
_HEARTBEAT = 40
# Seconds that processes have to exit by themselves after one has failed, so that an error common to
# all is printed by all. Process 0 exits last: without its service, JAX aborts the others.
_GRACE, _GRACE_OF_FIRST = 3.0, 5.0
# The key under which the service stores which process has failed.
_FAILED = "rope_jax/failed"


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
    with _watching():
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
    if failures:
        reason = " ".join(str(failures[0]).split())[:300] or type(failures[0]).__name__
        advice = "" if config.coordinator else "; give coordinator, num_processes and process_id"
        raise UserError(f"distributed: cannot join the processes at {where}: {reason}{advice}")


def _bind_address(config: DistributedConfig) -> str:
    """Return the address at which process 0 listens: the one given, so that no other is opened.

    Every interface if a name other than localhost stands for this machine alone, as Debian's
    /etc/hosts has it for the machine's own name. UserError: unknown, or in use.
    """
    assert config.coordinator is not None
    host, _, port = config.coordinator.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if config.process_id == 0:
            _check_can_listen(found)
    except OSError as error:
        raise UserError(
            f"distributed.coordinator: {config.coordinator}: {error.strerror or error}; "
            "it must be an address of process 0's host, with a free port"
        ) from None
    address = str(found[0][4][0])
    only_here = ipaddress.ip_address(address).is_loopback
    if only_here and host not in ("localhost", address):
        return f"[::]:{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_can_listen(found: list[Any]) -> None:
    """OSError if a port is in use: JAX would share it with process 0 of another run."""
    refused = []
    for family, _, _, _, address in found:
        try:
            socket.create_server(address[:2], family=family).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            refused.append(error)  # localhost is ::1 too, also where there is no IPv6
    if len(refused) == len(found):
        raise refused[0]


@contextlib.contextmanager
def _watching() -> Iterator[None]:
    """In this block, the process exits if another one reports that it has failed."""
    from jax._src import distributed  # the service's store has no public name

    state = distributed.global_state
    store: Any = state.client
    grace, left = _GRACE if state.process_id else _GRACE_OF_FIRST, threading.Event()

    def failure() -> str:
        """Return which process has reported that it failed; "" if none has."""
        try:
            return str(store.key_value_try_get(_FAILED))
        except Exception:  # nobody has stored it, or process 0 is gone and JAX ends this one
            return ""

    def exit_with_others() -> None:
        while not left.wait(1):
            if (failed := failure()) and not left.wait(grace):
                print(f"{program()}: {_loss(failed)}", file=sys.stderr, flush=True)
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
        lost, failed = None, ""
        if not isinstance(error, (UserError, Stopped, KeyboardInterrupt)):
            time.sleep(1)  # Perhaps it failed because another process has: wait for news.
            failed = failure()
        if failed or re.search("Gloo|NCCL|coordination", str(error)):
            lost = UserError(_loss(failed or "another process"))
        name = f"process {state.process_id} of {state.num_processes}"
        with contextlib.suppress(Exception):  # another one was faster, or the service is gone
            store.key_value_set(_FAILED, "another process" if lost else name)
        _exit_after(grace, lost or error)
        if lost:
            raise lost from None
        raise


def _loss(who: str) -> str:
    return (
        f"{who} has stopped, and the others cannot continue without it; its own output says why. "
        "Start all of them again to continue"
    )


def _exit_after(seconds: float, error: BaseException) -> None:
    """Exit a while after an error: at the end of Python, JAX would wait for the other processes."""
    status = 2 if isinstance(error, UserError) else 1
    if isinstance(error, (Stopped, KeyboardInterrupt)):
        status = 128 + getattr(error, "signal", signal.SIGINT)
    timer = threading.Timer(seconds, os._exit, [status])
    timer.daemon = True
    timer.start()
