"""Processes that join each other at one address, and that end when one of them is gone."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rope_jax.config.devices import DistributedConfig
from rope_jax.devices import processes
from rope_jax.errors import UserError

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
    port: int, members: list[subprocess.Popen[str]]
) -> None:
    members.append(member(port, 3, 0, MEET, timeout=4))
    members.append(member(port + 1, 2, 0, MEET))
    while not listens(port + 1):
        assert members[1].poll() is None
        time.sleep(0.1)
    members[1].send_signal(signal.SIGINT)
    assert ended(members[1]) == (130, "", "-c: stopped; run the same command again to resume\n")
    status, out, err = ended(members[0])
    assert (status, out) == (2, "")
    assert err.startswith(
        f"-c: distributed: after 4 s not all processes of 3 have met at localhost:{port}; "
    )
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_cluster_that_jax_does_not_know_is_refused(members: list[subprocess.Popen[str]]) -> None:
    members.append(start("{}", MEET))
    status, _, err = ended(members[0])
    assert status == 2
    assert err.startswith("-c: distributed: cannot join the processes at the address that the clus")
    assert err.endswith("; give coordinator, num_processes and process_id\n")
    assert err.count("\n") == 1


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
@pytest.mark.parametrize(
    ("failing", "how", "status"),
    [
        (0, "raise UserError('no texts')", 2),
        (1, "os.kill(os.getpid(), signal.SIGTERM)\nwhile True: stopping.check()", 143),
    ],
)
def test_a_process_that_fails_or_is_stopped_alone_ends_the_others(
    failing: int, how: str, status: int, port: int, members: list[subprocess.Popen[str]]
) -> None:
    actions = [TOGETHER, ALONE, ALONE]
    actions[failing] = how
    members += [member(port, 3, number, action) for number, action in enumerate(actions)]
    for number, process in enumerate(members):
        found, _, err = ended(process)
        assert found == (status if number == failing else 2), err
        assert number == failing or f"process {failing} of 3 {LOSS}" in err
        assert "Traceback" not in err


@pytest.mark.slow
def test_an_error_common_to_all_is_printed_by_all(
    port: int, members: list[subprocess.Popen[str]]
) -> None:
    action = "time.sleep(2 * (1 - int(sys.argv[1].find('id: 0') > 0))); raise UserError('no texts')"
    members += [member(port, 2, number, action) for number in (0, 1)]
    assert [ended(process) for process in members] == [(2, "", "-c: no texts\n")] * 2


KILLED = "processes.any_of(False); os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.slow
def test_a_killed_process_fails_the_operation_that_the_others_are_in(
    port: int, members: list[subprocess.Popen[str]]
) -> None:
    actions = [TOGETHER, KILLED, TOGETHER]
    members += [member(port, 3, number, action) for number, action in enumerate(actions)]
    for number in (0, 2):
        status, _, err = ended(members[number])
        assert status == 2, err
        assert LOSS in err
        assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "message"),
    [
        (0, "the JAX distributed service detected fatal errors"),
        (1, "stopped sending heartbeats"),
    ],
)
def test_jax_ends_a_process_that_works_alone_while_another_is_killed(
    killed: int, message: str, port: int, members: list[subprocess.Popen[str]]
) -> None:
    actions = [f"processes.any_of(False)\n{ALONE}"] * 2
    actions[killed] = KILLED
    members += [member(port, 2, number, action) for number, action in enumerate(actions)]
    assert ended(members[killed])[0] == -signal.SIGKILL
    began = time.monotonic()
    status, _, err = ended(members[1 - killed])
    assert status == -signal.SIGABRT
    assert message in err
    assert time.monotonic() - began < processes._HEARTBEAT + 20
