"""How the processes of one run find each other, and how they notice that one of them is gone.

JAX waits for processes that do not arrive and then aborts with a stack trace; and if one fails
alone, the others hang forever in a collective operation. So process 0 first listens at the
coordinator's address, and every other process reports its number there. The connections stay open
until the work ends: if one closes without a message, its process is gone.
"""

import contextlib
import errno
import ipaddress
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from rope_jax import stopping
from rope_jax.config.devices import DistributedConfig
from rope_jax.errors import Stopped, UserError

_HERE, _GO, _REFUSED = b"rope-jax process", b"go", b"refused"
_BYE, _FAILED, _KILLED = b"bye", b"failed", b"killed"
# Seconds that processes have to exit by themselves after one has failed, so that an error common to
# all is printed by all. After a kill there is nothing to wait for. Process 0 exits last (after a
# kill, by _HEAD_START), because JAX aborts processes that lose it, with a stack trace.
GRACE, GRACE_OF_FIRST = 3.0, 5.0
_HEAD_START = 1.0


def exit_after(seconds: float, reason: Callable[[], str] = lambda: "", status: int = 2) -> None:
    """After a delay, print the reason and exit, even if this process is blocked by then."""

    def exit_process() -> None:
        time.sleep(seconds)
        if message := reason():
            print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr, flush=True)
        os._exit(status)

    threading.Thread(target=exit_process, daemon=True).start()


def is_orderly(error: BaseException | None) -> bool:
    """Whether ending with `error` (None: success) leaves no other process waiting."""
    return error is None or (isinstance(error, Stopped) and error.together)


class Peers:
    """The other processes. While entered, this process exits too if one of them fails or dies."""

    def __init__(self, count: int, others: dict[int, socket.socket]) -> None:
        """others: connections by process number: all others in process 0, elsewhere only 0."""
        self._count, self._others = count, others
        self._lost: int | None = None
        self._was_killed = False
        self._left = self._failed = False
        self._all_told = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        for connection in others.values():
            connection.settimeout(None)
            # A host that loses power closes no connection: send probes, and give up after 40 s.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def __enter__(self) -> "Peers":
        self._watcher.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        self._failed = not is_orderly(error)
        if self._failed:
            # Perhaps a collective operation failed because another process is gone: wait for news.
            by_itself = isinstance(error, (UserError, Stopped, KeyboardInterrupt))
            self._watcher.join(0.1 if by_itself else 1)
            if self._was_killed or (self._lost is not None and not by_itself):
                raise UserError(self._loss()) from None
        self._left = True
        self._send_all(_FAILED if self._failed else _BYE)
        self._all_told.set()

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            for number, connection in self._others.items():
                selector.register(stack.enter_context(connection), selectors.EVENT_READ, number)
            while selector.get_map():
                for key, _ in selector.select():
                    word = _read_line(self._others[key.data])
                    selector.unregister(key.fileobj)
                    if self._left:
                        # Returning closes all connections, also to those not told yet.
                        self._all_told.wait()
                        return
                    if word != _BYE:
                        self._handle_loss(key.data, word or _KILLED)
                        return

    def _handle_loss(self, number: int, message: bytes) -> None:
        """Pass on a message from process `number` that a process is lost, and exit."""
        word, _, origin = message.partition(b" ")  # process 0 appends the lost process's number
        self._lost, self._was_killed = int(origin or number), word == _KILLED
        self._send_all(b"%s %d" % (word, self._lost))
        first = 0 not in self._others
        if self._was_killed:
            grace = _HEAD_START if first else 0
        else:
            grace = GRACE_OF_FIRST if first else GRACE
        exit_after(grace, lambda: "" if self._failed else self._loss())

    def _loss(self) -> str:
        return (
            f"process {self._lost} of {self._count} has stopped, and the others cannot continue "
            "without it; its own output says why. Start all of them again to continue"
        )

    def _send_all(self, word: bytes) -> None:
        for connection in self._others.values():
            with contextlib.suppress(OSError):  # this one is gone too
                connection.sendall(word + b"\n")
                connection.shutdown(socket.SHUT_WR)


def meet(config: DistributedConfig) -> Peers:
    """Wait until all processes have arrived. UserError names those that have not."""
    assert config.coordinator is not None
    assert config.num_processes is not None
    host, port = split_address(config.coordinator)
    deadline = time.monotonic() + config.timeout
    try:
        if config.process_id == 0:
            others = _wait_for_others(config, config.num_processes, host, port, deadline)
        else:
            others = {0: _report_to_first(config, host, port, deadline)}
    except OSError as error:
        raise UserError(
            f"distributed.coordinator: {config.coordinator}: {error.strerror or error}; "
            "it must be an address of process 0's host, with a free port"
        ) from None
    return Peers(config.num_processes, others)


def bind_host(host: str) -> str:
    """Return the host at which process 0 listens: the one given, so that no other is opened.

    "" (every interface) if a name other than localhost stands for this machine alone, as Debian's
    /etc/hosts has it for the machine's own name: other hosts know it by another address.
    OSError if the name is unknown.
    """
    found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    only_here = all(ipaddress.ip_address(address).is_loopback for address in found)
    return "" if only_here and host != "localhost" and host not in found else host


def split_address(coordinator: str) -> tuple[str, int]:
    """Return host and port of host:port or [IPv6 address]:port."""
    host, _, port = coordinator.rpartition(":")
    return host.strip("[]"), int(port)


def _wait_for_others(
    config: DistributedConfig, count: int, host: str, port: int, deadline: float
) -> dict[int, socket.socket]:
    """Accept connections until each of the other processes has reported on one.

    Whatever else connects is dropped; if it stays silent, it keeps nobody waiting.
    """
    arrived: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for server in _listen(bind_host(host), port, stack):
            selector.register(server, selectors.EVENT_READ, "server")
        while len(arrived) < count - 1 or any(map(_is_gone, arrived.values())):
            stopping.check()
            if time.monotonic() > deadline:
                here = [i for i, connection in arrived.items() if not _is_gone(connection)]
                missing = ", ".join(str(i) for i in range(1, count) if i not in here)
                raise UserError(
                    f"distributed: after {config.timeout} s process {missing} of {count} has not "
                    f"reached {config.coordinator}; start every process_id, or set "
                    "distributed.timeout higher"
                )
            for key, _ in selector.select(0.1):
                assert isinstance(key.fileobj, socket.socket)
                if key.data == "server":
                    connection = stack.enter_context(key.fileobj.accept()[0])
                    connection.setblocking(False)
                    selector.register(connection, selectors.EVENT_READ, "visitor")
                    continue
                connection = key.fileobj
                selector.unregister(connection)
                number = _reported_number(connection)
                if number is None or not 0 < number < count:  # not a process of this run
                    if number is not None:
                        _refuse(connection, number)
                    connection.close()
                    continue
                if number in arrived and _is_gone(arrived[number]):  # it was restarted
                    arrived.pop(number).close()
                if number in arrived:
                    for other in (connection, *arrived.values()):
                        _refuse(other, number)
                    raise _refused(number, count)
                arrived[number] = connection
        for connection in arrived.values():
            connection.setblocking(True)
            connection.sendall(_GO + b"\n")
        return {i: connection.dup() for i, connection in arrived.items()}  # stay open


def _listen(host: str, port: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Listen at every address of a host; "": on every interface."""
    if not host:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        both = family == socket.AF_INET6
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
        return [stack.enter_context(server)]
    servers: list[socket.socket] = []
    refused = OSError(errno.EADDRNOTAVAIL, "it has no address")
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            server = socket.create_server((str(address[0]), port), family=family)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            refused = error  # localhost is ::1 too, also where there is no IPv6
            continue
        servers.append(stack.enter_context(server))
    if not servers:
        raise refused
    return servers


def _reported_number(connection: socket.socket) -> int | None:
    """Return the number that a process reports; None if the peer is not one of our processes."""
    try:
        message = connection.recv(64)
    except OSError:
        return None
    word, _, number = message.strip().rpartition(b" ")
    return int(number) if word == _HERE and number.isdigit() else None


def _refuse(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(b"%s %d\n" % (_REFUSED, number))


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
        "its own number"
    )


def _report_to_first(
    config: DistributedConfig, host: str, port: int, deadline: float
) -> socket.socket:
    """Report to process 0, and wait until all others have arrived."""
    while True:
        stopping.check()
        left = max(0.01, deadline - time.monotonic())
        with contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(
                    socket.create_connection((host, port), timeout=left)
                )
                connection.sendall(b"%s %d\n" % (_HERE, config.process_id or 0))
                message = _read_line(connection)
                if message == _GO:
                    stack.pop_all()  # keep it open
                    return connection
                word, _, number = message.partition(b" ")
                if word == _REFUSED:
                    raise _refused(int(number), config.num_processes or 0)
            except socket.gaierror:
                raise
            except OSError:  # process 0 is not listening yet
                pass
        if time.monotonic() > deadline:
            raise UserError(
                f"distributed: after {config.timeout} s process 0 at {config.coordinator} has not "
                "confirmed that all have come; start every process_id, or correct "
                "distributed.coordinator"
            )
        time.sleep(0.1)


def _read_line(connection: socket.socket) -> bytes:
    """Return the next line without its newline; b"" if the connection closes or breaks."""
    line = b""
    while len(line) < 32:
        try:
            byte = connection.recv(1)
        except ConnectionError:
            break
        if byte == b"\n":
            return line
        if not byte:
            break
        line += byte
    return b""
