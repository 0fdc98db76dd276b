"""How the processes of one run meet, and how they learn that one of them has gone.

JAX waits for processes that do not come and then aborts with a stack trace; and where one fails
alone, the others stay forever in an operation that takes all of them. So process 0 listens at the
coordinator's address first, each other one says its number there, and their connections stay open
until the work ends: one that closes without a word tells that its process is gone.
"""

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from rope_jax.config.devices import DistributedConfig
from rope_jax.errors import Stopped, UserError

_HERE, _GO, _REFUSED = b"rope-jax process", b"go", b"refused"
_BYE, _FAILED, _KILLED = b"bye", b"failed", b"killed"
# Seconds that a process may take to end by itself once one has failed: what all refuse together,
# all say. Where one was killed there is nothing to wait for. Process 0 is the last to end, because
# JAX aborts those that lose it, with a stack trace.
GRACE, GRACE_OF_FIRST = 3.0, 5.0
_HEAD_START = 1.0


def end_after(seconds: float, why: Callable[[], str] = lambda: "", status: int = 2) -> None:
    """End this process with a status, whatever it waits for then, and say why."""

    def end() -> None:
        time.sleep(seconds)
        if said := why():
            print(f"{os.path.basename(sys.argv[0])}: {said}", file=sys.stderr, flush=True)
        os._exit(status)

    threading.Thread(target=end, daemon=True).start()


def in_order(error: BaseException | None) -> bool:
    """Whether work that ends by `error`, None for none, leaves nobody waiting."""
    return error is None or (isinstance(error, Stopped) and error.together)


class Company:
    """The other processes, while it is entered: if one goes without a word, this one ends too."""

    def __init__(self, count: int, others: dict[int, socket.socket]) -> None:
        """others: the connection to each; process 0 has one to all, each other one to process 0."""
        self._count, self._others = count, others
        self._lost: int | None = None
        self._was_killed = False
        self._left = self._failed = False
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        for connection in others.values():
            connection.settimeout(None)
            # a host that loses its power closes nothing: ask it, and give up after 40 s
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def __enter__(self) -> "Company":
        self._watcher.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        self._failed = not in_order(error)
        if self._failed:
            # perhaps an operation of all, which broke when another one went
            by_itself = isinstance(error, (UserError, Stopped, KeyboardInterrupt))
            self._watcher.join(0.1 if by_itself else 1)
            if self._was_killed or (self._lost is not None and not by_itself):
                raise UserError(self._why()) from None
        self._left = True
        self._tell_all(_FAILED if self._failed else _BYE)

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            for number, connection in self._others.items():
                selector.register(stack.enter_context(connection), selectors.EVENT_READ, number)
            while selector.get_map():
                for key, _ in selector.select():
                    said = _line(self._others[key.data])
                    selector.unregister(key.fileobj)
                    if self._left:
                        return
                    if said != _BYE:
                        self._miss(key.data, said or _KILLED)
                        return

    def _miss(self, number: int, said: bytes) -> None:
        word, _, of = said.partition(b" ")  # process 0 passes on of whom it heard
        self._lost, self._was_killed = int(of or number), word == _KILLED
        self._tell_all(b"%s %d" % (word, self._lost))
        first = 0 not in self._others
        if self._was_killed:
            grace = _HEAD_START if first else 0
        else:
            grace = GRACE_OF_FIRST if first else GRACE
        end_after(grace, lambda: "" if self._failed else self._why())

    def _why(self) -> str:
        return (
            f"process {self._lost} of {self._count} has stopped, and the others cannot go on "
            "without it; its own output says why. Start all of them again to go on"
        )

    def _tell_all(self, word: bytes) -> None:
        for connection in self._others.values():
            with contextlib.suppress(OSError):  # that one is gone
                connection.sendall(word + b"\n")
                connection.shutdown(socket.SHUT_WR)


def meet(config: DistributedConfig) -> Company:
    """Wait until all processes are there. UserError, naming those that do not come."""
    assert config.coordinator is not None
    assert config.num_processes is not None
    host, _, port = config.coordinator.rpartition(":")
    deadline = time.monotonic() + config.timeout
    try:
        if config.process_id == 0:
            others = _wait_for_others(config, config.num_processes, int(port), deadline)
        else:
            others = {0: _report(config, host.strip("[]"), int(port), deadline)}
    except OSError as error:
        raise UserError(
            f"distributed.coordinator: {config.coordinator}: {error.strerror or error}; "
            "it must be an address of process 0's host, with a free port"
        ) from None
    return Company(config.num_processes, others)


def _wait_for_others(
    config: DistributedConfig, count: int, port: int, deadline: float
) -> dict[int, socket.socket]:
    arrived: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack, _server(port) as server:
        while len(arrived) < count - 1 or any(map(_is_gone, arrived.values())):
            left = deadline - time.monotonic()
            try:
                server.settimeout(max(0.01, left))
                connection = stack.enter_context(server.accept()[0])
            except TimeoutError:
                left = 0
            if left <= 0:
                here = [i for i, connection in arrived.items() if not _is_gone(connection)]
                missing = ", ".join(str(i) for i in range(1, count) if i not in here)
                raise UserError(
                    f"distributed: after {config.timeout} s process {missing} of {count} has not "
                    f"come to {config.coordinator}; start every process_id, or set "
                    "distributed.timeout higher"
                )
            number = _greeting(connection)
            if number is None:  # a stranger
                connection.close()
                continue
            if number in arrived and _is_gone(arrived[number]):  # and was started anew
                arrived.pop(number).close()
            if number in arrived or not 0 < number < count:
                for other in (connection, *arrived.values()):
                    with contextlib.suppress(OSError):
                        other.sendall(b"%s %d\n" % (_REFUSED, number))
                raise _refused(number, count)
            arrived[number] = connection
        for connection in arrived.values():
            connection.sendall(_GO + b"\n")
        stack.pop_all()  # they stay open
    return arrived


def _server(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _greeting(connection: socket.socket) -> int | None:
    """The number that it says; None from a stranger, who may say anything, or nothing."""
    connection.settimeout(1)
    try:
        said = connection.recv(64)
    except OSError:
        return None
    word, _, number = said.strip().rpartition(b" ")
    return int(number) if word == _HERE and number.isdigit() else None


def _is_gone(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _refused(number: int, count: int) -> UserError:
    return UserError(
        f"distributed.process_id: {number} came twice, or is not below {count}; give each process "
        "its own"
    )


def _report(config: DistributedConfig, host: str, port: int, deadline: float) -> socket.socket:
    while True:
        left = max(0.01, deadline - time.monotonic())
        with contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(
                    socket.create_connection((host, port), timeout=left)
                )
                connection.sendall(b"%s %d\n" % (_HERE, config.process_id or 0))
                said = _line(connection)
                if said == _GO:
                    stack.pop_all()  # it stays open
                    return connection
                word, _, number = said.partition(b" ")
                if word == _REFUSED:
                    raise _refused(int(number), config.num_processes or 0)
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


def _line(connection: socket.socket) -> bytes:
    """What it says in a line, without the end of it; nothing where it closes or breaks."""
    said = b""
    while len(said) < 32:
        try:
            byte = connection.recv(1)
        except ConnectionError:
            break
        if byte == b"\n":
            return said
        if not byte:
            break
        said += byte
    return b""
