"""Processes that wait for each other at one address, and that notice when one is gone."""

import contextlib
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from rope_jax.config.devices import DistributedConfig
from rope_jax.devices import rendezvous
from rope_jax.errors import UserError


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("localhost", 0)) as server:
        other = socket.create_connection(server.getsockname())
        return server.accept()[0], other


def test_only_a_process_that_fails_is_reported_as_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    missed: list[str] = []
    monkeypatch.setattr(rendezvous, "exit_after", lambda _, reason: missed.append(reason()))
    for bad in (None, UserError("no texts")):
        mine, other = connected()
        with rendezvous.Peers(3, {2: mine}):
            with contextlib.suppress(UserError), rendezvous.Peers(3, {0: other}):
                if bad:
                    raise bad
            time.sleep(0.3)
            assert len(missed) == bool(bad)
    assert missed[0].startswith("process 2 of 3 has stopped")


def test_a_process_that_leaves_tells_all_others_before_it_closes_a_connection() -> None:
    first, other_first = connected()
    second, other_second = connected()

    class Slow(socket.socket):
        """While process 0 leaves, process 1 leaves too, before process 2 has been told."""

        def shutdown(self, how: int) -> None:
            super().shutdown(how)
            other_first.sendall(b"bye\n")
            time.sleep(0.3)

    with other_first, other_second:
        with rendezvous.Peers(3, {1: Slow(fileno=first.detach()), 2: second}):
            pass
        other_second.settimeout(5)
        assert other_second.recv(16) == b"bye\n"


@pytest.mark.parametrize("process_id", [0, 1])
def test_a_process_that_waits_in_vain_reports_who_is_missing(process_id: int) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    config = DistributedConfig(
        coordinator=f"localhost:{port}", num_processes=3, process_id=process_id, timeout=1
    )
    missing = {
        0: r"process 1, 2 of 3 has not reached",
        1: r"process 0 at localhost:\d+ has not confirmed that all have come",
    }[process_id]
    with pytest.raises(UserError, match=rf"distributed: after 1 s {missing}"):
        rendezvous.meet(config)


def gathered(
    count: int, visitors: list[Callable[[int], object]], *ids: int, host: str = "localhost"
) -> list[str]:
    """Return what each process got from meeting at one address, after visitors had connected."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]

    def one(number: int) -> str:
        config = DistributedConfig(
            coordinator=f"{host}:{port}", num_processes=count, process_id=number, timeout=8
        )
        try:
            with rendezvous.meet(config):
                return "met"
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(count) as pool:
        first = pool.submit(one, 0)
        for visit in visitors:
            visit(port)
        others = [pool.submit(one, number) for number in ids]
        return [process.result() for process in (first, *others)]


def visit(port: int, message: bytes, host: str = "localhost") -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            connection = socket.create_connection((host.strip("[]"), port), timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            continue
        connection.sendall(message)
        return connection


@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_strangers_and_processes_started_again_do_not_disturb_the_meeting(host: str) -> None:
    words = [b"1\n", b"99\n", b"GET / HTTP/1.1\r\n", b"", b"rope-jax process 2\n"]
    words += [b"rope-jax process 9\n", b"rope-jax process 0\n", b"rope-jax process " + b"9" * 99]
    gone = [lambda port, word=word: visit(port, word, host).close() for word in words]
    assert gathered(3, gone, 1, 2, host=host) == ["met"] * 3


def test_silent_connections_keep_nobody_waiting() -> None:
    silent: list[socket.socket] = []
    visits = [lambda port: silent.append(visit(port, b""))] * 20
    began = time.monotonic()
    assert gathered(2, visits, 1) == ["met"] * 2
    assert time.monotonic() - began < 8  # a second for each before
    for connection in silent:
        connection.close()


def test_process_0_listens_at_the_address_given_only() -> None:
    with contextlib.ExitStack() as stack:
        (server,) = rendezvous._listen("127.0.0.1", 0, stack)
        assert server.getsockname()[0] == "127.0.0.1"
        assert server.family == socket.AF_INET
    assert rendezvous.bind_host("127.0.0.1") == "127.0.0.1"
    assert rendezvous.bind_host("localhost") == "localhost"


def test_a_name_that_only_this_machine_knows_by_its_loopback_opens_every_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: here)
    assert rendezvous.bind_host("node7") == ""
    assert rendezvous.bind_host("127.0.1.1") == "127.0.1.1"


def test_a_process_id_given_twice_is_refused_by_all() -> None:
    said = gathered(3, [], 1, 1)
    assert len(set(said)) == 1
    assert said[0].startswith("distributed.process_id: 1 came twice")


def test_an_address_that_does_not_exist_is_refused() -> None:
    config = DistributedConfig(
        coordinator="no.such.host.invalid:1234", num_processes=2, process_id=1, timeout=1
    )
    with pytest.raises(UserError, match=r"distributed\.coordinator: no\.such\.host\.invalid:1234"):
        rendezvous.meet(config)
