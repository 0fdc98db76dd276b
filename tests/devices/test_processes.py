"""Processes that join each other at one address, and that end when one of them is gone."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rope_jax import stopping
from rope_jax.config.devices import DistributedConfig
from rope_jax.devices import processes
from rope_jax.errors import Stopped, UserError

ROOT = Path(__file__).parents[2]
# argv: the config of the processes, and what this one does once it has joined.
MEMBER = """
import os, signal, sys, time
import yaml
from rope_jax import cli, stopping
from rope_jax.config.devices import DistributedConfig
from rope_jax.devices import processes
from rope_jax.errors import UserError

def main(argv):
    with processes.joined(DistributedConfig.model_validate(yaml.safe_load(argv[0]))):
        exec(argv[1])

cli.run(main)
"""
MEET = """
import jax
print(jax.process_index(), processes.smallest(jax.process_index() + 5), jax.process_count())
"""
# A collective operation that lasts, and work in which a process needs no other.
TOGETHER = "while True: processes.any_of(False); time.sleep(0.1)"
ALONE = "while True: stopping.check(); time.sleep(0.1)"
LOSS = "has stopped, and the others cannot continue without it"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        number: int = probe.getsockname()[1]
        return number


@pytest.fixture
def members() -> Iterator[list[subprocess.Popen[str]]]:
    """Return an empty list for processes, which are killed at the end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(config: str, action: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", MEMBER, config, action],
        env=os.environ | {"PYTHONPATH": str(ROOT), **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def member(port: int, count: int, number: int, action: str, timeout: int = 100) -> subprocess.Popen:
    config = f"coordinator: localhost:{port}, num_processes: {count}, process_id: {number}"
    return start(f"{{{config}, timeout: {timeout}}}", action)


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def config(coordinator: str, number: int = 0) -> DistributedConfig:
    return DistributedConfig(coordinator=coordinator, num_processes=2, process_id=number)


def test_process_0_listens_at_the_address_given_only(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("127.0.0.1", "localhost"):
        assert processes._bind_address(config(f"{host}:{port}")) == f"{host}:{port}"
    assert processes._bind_address(config("[::1]:1234", 1)) == "[::1]:1234"
    assert processes._bind_address(config("192.0.2.7:1234", 1)) == "192.0.2.7:1234"
    for number in (0, 1):
        with pytest.raises(UserError, match=r"distributed\.coordinator: no\.such\.host\.invalid:1"):
            processes._bind_address(config("no.such.host.invalid:1234", number))
    with pytest.raises(UserError, match="an address of process 0's host"):
        processes._bind_address(config("192.0.2.7:1234"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"{address}: .*in use.* with a free port"):
            processes._bind_address(config(address))
    # a name that only this machine knows by its loopback opens every interface
    here = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: here)
    assert processes._bind_address(config("node7:1234", 1)) == "[::]:1234"
    assert processes._bind_address(config("127.0.1.1:1234", 1)) == "127.0.1.1:1234"


def test_a_process_that_waits_for_others_ends_at_the_timeout_or_by_a_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met = threading.Event()
    monkeypatch.setattr("jax.distributed.initialize", lambda **_: met.wait())
    alone = DistributedConfig(num_processes=3, process_id=1, coordinator="[::1]:9", timeout=1)
    with pytest.raises(
        UserError, match=r"after 1 s not all processes of 3 have met at \[::1\]:9; "
    ):
        processes._connect(alone)
    monkeypatch.setattr(stopping._request, "signal", signal.SIGINT)
    with pytest.raises(Stopped):
        processes._connect(alone.model_copy(update={"timeout": 100}))
    met.set()


def test_the_variables_of_a_cluster_say_which_process_is_which(
    port: int, members: list[subprocess.Popen[str]]
) -> None:
    for number in range(2):
        variables = {  # what srun sets for two tasks on one node
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS": "2",
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_PROCID": str(number),
            "SLURM_LOCALID": str(number),
            "JAX_COORDINATOR_PORT": str(port),
        }
        members.append(start("{}", MEET, variables))
    for number, process in enumerate(members):
        status, out, err = ended(process)
        assert (status, out.splitlines()[-1:]) == (0, [f"{number} 5.0 2"]), err


@pytest.mark.slow
def test_processes_that_do_not_meet_are_told_so(
    port: int, members: list[subprocess.Popen[str]]
) -> None:
    members += [member(port, 3, 0, MEET, timeout=4), member(port + 1, 2, 0, MEET)]
    members.append(start("{}", MEET))  # of a cluster that JAX does not know
    while not listens(port + 1):
        assert members[1].poll() is None
        time.sleep(0.1)
    members[1].send_signal(signal.SIGINT)
    (late, _, err), stopped, (unknown, _, other) = map(ended, members)
    assert (late, unknown) == (2, 2)
    assert stopped == (130, "", "-c: stopped; run the same command again to resume\n")
    assert err.startswith("-c: distributed: after 4 s not all processes of 3 have met at localhost")
    assert other.startswith("-c: distributed: cannot join the processes at the address that the cl")
    assert other.endswith("; give coordinator, num_processes and process_id\n")
    assert err.count("\n") == other.count("\n") == 1


KILL = "processes.any_of(False); os.kill(os.getpid(), signal.SIGKILL)"
STOP = "os.kill(os.getpid(), signal.SIGTERM)\nwhile True: stopping.check()"
# the first process waits for the second one, whose error is the same
FAIL = "time.sleep(2 * (1 - int(sys.argv[1].find('id: 0') > 0))); raise UserError('no texts')"
JOINED = f"processes.any_of(False)\n{ALONE}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actions", "ends"),
    [
        # a process that fails or is stopped alone ends the others, whatever these do
        (["raise UserError('no texts')", ALONE], [(2, "no texts"), (2, f"process 0 of 2 {LOSS}")]),
        (
            [TOGETHER, STOP, ALONE],
            [(2, f"process 1 of 3 {LOSS}"), (143, "stopped"), (2, f"process 1 of 3 {LOSS}")],
        ),
        ([FAIL, FAIL], [(2, "-c: no texts\n"), (2, "-c: no texts\n")]),
        # one that is killed fails the operation that the others are in
        ([TOGETHER, KILL], [(2, LOSS), (-signal.SIGKILL, "")]),
        # JAX ends those that work alone
        ([KILL, JOINED], [(-signal.SIGKILL, ""), (-signal.SIGABRT, "service detected fatal err")]),
        ([JOINED, KILL], [(-signal.SIGABRT, "stopped sending heartbeats"), (-signal.SIGKILL, "")]),
    ],
    ids=["fails", "stopped", "common", "killed", "first killed", "killed while others work"],
)
def test_if_one_process_ends_so_do_the_others(
    actions: list[str],
    ends: list[tuple[int, str]],
    port: int,
    members: list[subprocess.Popen[str]],
) -> None:
    count, began = len(actions), time.monotonic()
    members += [member(port, count, number, action) for number, action in enumerate(actions)]
    for process, (status, message) in zip(members, ends, strict=True):
        found, _, err = ended(process)
        assert found == status, err
        assert message in err
        assert found == -signal.SIGABRT or "Traceback" not in err
        assert actions != [FAIL, FAIL] or err == message
    assert time.monotonic() - began < processes._HEARTBEAT + 40
