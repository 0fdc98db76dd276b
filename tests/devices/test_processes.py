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

from rope_jax.devices import processes

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
    with processes.initialize(DistributedConfig.model_validate(yaml.safe_load(argv[0]))):
        exec(argv[1])

cli.run(main)
"""
MEET = """
import jax
print(jax.process_index(), processes.min_over_hosts(jax.process_index() + 5), jax.process_count())
"""
# A collective operation that lasts, and work in which a process needs no other.
TOGETHER = "while True: processes.any_host(False); time.sleep(0.1)"
ALONE = "while True: stopping.check(); time.sleep(0.1)"
LOSS = "another process has stopped, and this one cannot continue without it"


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
    members += [member(port, 3, 0, MEET, timeout=4)]
    members.append(start("{}", MEET))  # of a cluster that JAX does not know
    (late, _, err), (unknown, _, other) = map(ended, members)
    assert (late, unknown) == (2, 2)
    assert err.startswith("-c: distributed: after 4 s not all processes of 3 have met at localhost")
    assert other.startswith("-c: distributed: cannot join the processes at the address that the cl")
    assert other.endswith("; give coordinator, num_processes and process_id\n")
    assert err.count("\n") == other.count("\n") == 1


KILL = "processes.any_host(False); os.kill(os.getpid(), signal.SIGKILL)"
STOP = "os.kill(os.getpid(), signal.SIGTERM)\nwhile True: stopping.check()"
# the first process waits for the second one, whose error is the same
FAIL = "time.sleep(2 * (1 - int(sys.argv[1].find('id: 0') > 0))); raise UserError('no texts')"
JOINED = f"processes.any_host(False)\n{ALONE}"
ABORTED = (-signal.SIGABRT, "")  # by JAX


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actions", "ends"),
    [
        # a process that fails, is stopped alone or is killed ends the others
        (["raise UserError('no texts')", ALONE], [(2, "no texts"), ABORTED]),
        ([TOGETHER, STOP], [(2, LOSS), (143, "stopped")]),
        ([FAIL, FAIL], [(2, "-c: no texts\n"), (2, "-c: no texts\n")]),
        ([TOGETHER, KILL], [(2, LOSS), (-signal.SIGKILL, "")]),
        ([JOINED, KILL], [ABORTED, (-signal.SIGKILL, "")]),
    ],
    ids=["fails", "stopped", "common", "killed", "killed while others work"],
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
        code, _, err = ended(process)
        if message == LOSS and code == -signal.SIGABRT:  # JAX noticed before the operation failed
            continue
        assert code == status, err
        assert message in err
        assert code == -signal.SIGABRT or "Traceback" not in err
    assert time.monotonic() - began < processes._HEARTBEAT + 40
