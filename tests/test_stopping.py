"""Ctrl-C and SIGTERM, at every kind of moment, in processes of their own."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rope_jax import stopping
from rope_jax.errors import Stopped

ROOT = Path(__file__).parents[1]
GRACE = 0.6  # seconds, so that no test waits for five
START = f"""
import signal, sys, time
from rope_jax import cli, stopping
stopping.GRACE = {GRACE}
def say(word):
    print(word, flush=True)
"""
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a command whose `main` has this body; return once it has printed a line."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str) -> subprocess.Popen[str]:
        main = "def main(_):\n" + "".join(f"    {line}\n" for line in body.splitlines())
        process = subprocess.Popen(
            [sys.executable, "-c", START + main + "cli.run(main)"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the process; return its status and what it wrote to stderr."""
    _, err = process.communicate(timeout=20)
    return process.returncode, err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_work_that_looks_at_the_flag_ends_in_one_line(
    start: Start, number: int, status: int
) -> None:
    process = start("say('working')\nwhile True:\n    time.sleep(0.01)\n    stopping.check()")
    process.send_signal(number)
    assert end(process) == (status, "-c: stopped; run the same command again to resume\n")


def test_no_exception_is_raised_in_work_that_does_not_look(start: Start) -> None:
    process = start("say('working')\ntime.sleep(0.3)\nsay('done')")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "done\n", "")


@pytest.mark.parametrize(
    "work",
    [
        "time.sleep(60)",
        # In compiled code no handler runs, as while XLA compiles.
        "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "try:\n    while True: pass\nexcept BaseException: say('swallowed')",
    ],
)
def test_work_that_never_looks_is_ended_after_a_few_seconds(start: Start, work: str) -> None:
    process = start(f"say('working')\n{work}")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status, err = end(process)
    assert GRACE <= time.monotonic() - began < GRACE + 10
    assert status == 143
    assert err == "-c: stopped in the middle of a long step; run the same command again to resume\n"


def test_each_look_puts_off_the_end(start: Start) -> None:
    process = start(
        "say('working')\n"
        "for _ in range(20):\n    time.sleep(0.1)\n    stopping.requested()\n"
        "say(stopping.requested())"
    )
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out.split(), err) == (0, [str(int(signal.SIGTERM))], "")


def test_a_unit_of_work_may_take_twice_as_long_as_the_one_before(start: Start) -> None:
    unit = 1.5 * GRACE
    process = start(
        f"stopping.requested()\ntime.sleep({unit})\nstopping.requested()\n"
        f"say('working')\ntime.sleep({unit})\nsay('done')"
    )
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 0


@pytest.mark.parametrize("unit", [0, 2 * GRACE])
def test_no_unit_of_work_is_waited_for_longer_than_schedulers_wait(
    start: Start, unit: float
) -> None:
    """And the first look does not count as the end of a unit."""
    looks = f"stopping.requested()\ntime.sleep({unit})\n" * bool(unit)
    process = start(
        f"stopping._LONGEST_GRACE = {2 * GRACE}\n{looks}stopping.requested()\n"
        "say('working')\ntime.sleep(60)"
    )
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert end(process)[0] == 143
    assert time.monotonic() - began < 3 * GRACE + 5


def test_what_must_not_be_cut_off_has_no_deadline_but_yields_to_a_second_signal(
    start: Start,
) -> None:
    body = "with stopping.uninterrupted():\n    say('saving')\n    time.sleep({})\nstopping.check()"
    process = start(body.format(2 * GRACE))
    process.send_signal(signal.SIGTERM)
    assert end(process) == (143, "-c: stopped; run the same command again to resume\n")

    process = start(body.format(60))
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)  # what some launchers do: the same one twice
    time.sleep(2 * GRACE)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    status, err = end(process)
    assert status == 130
    assert err == "-c: stopped at once, by a second signal; run the same command again to resume\n"


def test_a_signal_that_the_parent_ignores_stays_ignored() -> None:
    # As for a background job of a shell script.
    main = "def main(_):\n    signal.raise_signal(signal.SIGINT)\n    time.sleep(0.2)\n"
    main += "    stopping.check()\ncli.run(main)"
    ignoring = "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    ignoring += "sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
    command = [sys.executable, "-c", ignoring, "-c", START + main]
    assert subprocess.run(command, cwd=ROOT, timeout=20).returncode == 0


def test_the_handlers_of_before_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stopping.listening():
        assert signal.getsignal(signal.SIGTERM) != before[1]
        signal.raise_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while stopping.requested() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        with pytest.raises(Stopped):
            stopping.check()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    stopping.check()  # the next command starts afresh
