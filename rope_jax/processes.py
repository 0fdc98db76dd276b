"""Several processes, on one host or many, as one run.

Every process runs the same program on the same config; the first alone writes and speaks.
"""

import contextlib
import hashlib
import socket
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from rope_jax.errors import UserError
from rope_jax.schema import DistributedConfig

_LONGEST_MESSAGE = 2000


def join(config: DistributedConfig | None) -> None:
    """Wait for the other processes; before jax touches a device. UserError if they don't come."""
    if config is None:
        return
    if config.coordinator is not None:
        _meet(config)
    try:
        jax.distributed.initialize(
            coordinator_address=config.coordinator,
            num_processes=config.num_processes,
            process_id=config.process_id,
            initialization_timeout=config.timeout,
        )
    except Exception as error:  # of many kinds: the network, the cluster's variables, a time-out
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(
            f"distributed: cannot join {config.num_processes or 'the'} processes at "
            f"{config.coordinator or 'the address that the cluster gives'}: {reason}"
        ) from None


def _meet(config: DistributedConfig) -> None:
    """Wait until all processes are there: JAX's own waiting ends in an abort, with a stack trace.

    Process 0 listens at the coordinator's address, each other one says its number, and when all
    have come it sends them on and leaves the address to JAX.
    """
    assert config.coordinator is not None
    host, _, port = config.coordinator.rpartition(":")
    deadline = time.monotonic() + config.timeout
    try:
        if config.process_id == 0:
            _wait_for_others(config, int(port), deadline)
        else:
            _report(config, host.strip("[]"), int(port), deadline)
    except OSError as error:
        raise UserError(
            f"distributed.coordinator: {config.coordinator}: {error.strerror or error}; "
            "it must be an address of process 0's host, with a free port"
        ) from None


def _wait_for_others(config: DistributedConfig, port: int, deadline: float) -> None:
    awaited = set(range(1, config.num_processes or 1))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("", port)))
        arrived = []
        while awaited:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                number = int(connection.recv(16) or b"-1")
            except TimeoutError:
                missing = ", ".join(map(str, sorted(awaited)))
                raise UserError(
                    f"distributed: after {config.timeout} s process {missing} of "
                    f"{config.num_processes} has not come to {config.coordinator}; start every "
                    "process_id, or set distributed.timeout higher"
                ) from None
            except ValueError:  # somebody else
                continue
            if number not in awaited:
                raise UserError(
                    f"distributed.process_id: {number} came twice, or is not below "
                    f"{config.num_processes}; give each process its own"
                )
            awaited.remove(number)
            arrived.append(connection)
        for connection in arrived:
            connection.sendall(b"go")


def _report(config: DistributedConfig, host: str, port: int, deadline: float) -> None:
    while True:
        left = deadline - time.monotonic()
        try:
            with socket.create_connection((host, port), timeout=max(0.01, left)) as connection:
                connection.sendall(str(config.process_id).encode())
                if connection.recv(2) == b"go":
                    return
        except socket.gaierror:
            raise
        except OSError:  # process 0 is not there yet
            pass
        if time.monotonic() > deadline:
            raise UserError(
                f"distributed: after {config.timeout} s no process 0 at {config.coordinator} has "
                "gathered all; start every process_id, or mend distributed.coordinator"
            )
        time.sleep(0.1)


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def on_first(action: Callable[[], object]) -> None:
    """Do it on the first process alone; what fails there fails everywhere, with its message."""
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


def any_of(flag: bool) -> bool:
    """Whether it is set in any process; a meeting point of all."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def check_same(what: str, text: str) -> None:
    """UserError unless every process has this same text."""
    if jax.process_count() == 1:
        return
    mine = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    if len(np.unique(multihost_utils.process_allgather(mine), axis=0)) > 1:
        raise UserError(f"{what}: not the same in all processes; give all of them the same")
