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


STOPPED = "-c: stopped; run the same command again to resume\n"
LATE = "-c: stopped in the middle of a long step; run the same command again to resume\n"
LOOKS = "say('working')\nwhile True:\n    time.sleep(0.01)\n    stopping.check()"
WAITS = "say('working')\ntime.sleep(60)"
# In compiled code no handler of Python's runs, as while XLA compiles.
COMPILES = "import threading; lock = threading.Lock(); lock.acquire(); say(1); lock.acquire()"
SWALLOWS = "say('working')\ntry:\n    while True: pass\nexcept BaseException: say('swallowed')"
LOOKS_OFTEN = """say('working')
for _ in range(20):
    time.sleep(0.1)
    stopping.requested()
assert stopping.requested() == signal.SIGTERM"""
UNIT = f"time.sleep({1.5 * GRACE})\n"
TWICE_AS_LONG = f"stopping.requested()\n{UNIT}stopping.requested()\nsay('working')\n{UNIT}"
CAPPED = f"stopping._LONGEST_GRACE = 1\nstopping._request.unit = 50\n{WAITS}"
SAVES = "with stopping.uninterrupted():\n    say('saving')\n    time.sleep({})\nstopping.check()"


@pytest.mark.parametrize(
    ("work", "status", "err"),
    [
        (LOOKS, 130, STOPPED),
        (LOOKS, 143, STOPPED),
        # no exception is raised in work that does not look
        ("say('working')\ntime.sleep(0.3)", 0, ""),
        *((work, 143, LATE) for work in (WAITS, COMPILES, SWALLOWS)),
        # each look puts off the end, and a unit of work may take twice as long as the one before
        (LOOKS_OFTEN, 0, ""),
        (TWICE_AS_LONG, 0, ""),
        # but no longer than schedulers wait; and the first look does not end a unit
        (CAPPED, 143, LATE),
        (f"stopping.requested()\n{WAITS}", 143, LATE),
        # what must not be cut off has no deadline
        (SAVES.format(2 * GRACE), 143, STOPPED),
    ],
)
def test_a_signal_ends_work_between_two_units_or_after_a_few_seconds(
    start: Start, work: str, status: int, err: str
) -> None:
    process, began = start(work), time.monotonic()
    process.send_signal(signal.SIGINT if status == 130 else signal.SIGTERM)
    assert process.communicate(timeout=20)[1] == err
    assert process.returncode == status
    assert err != LATE or GRACE <= time.monotonic() - began < GRACE + 10


def test_what_must_not_be_cut_off_yields_to_a_second_signal(start: Start) -> None:
    process = start(SAVES.format(60))
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)  # what some launchers do: the same one twice
    time.sleep(2 * GRACE)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    err = process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert err == STOPPED.replace("stopped", "stopped at once, by a second signal")


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
