"""Measuring training speed, excluding validation and saving."""

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Tokens per second between two readings, excluding the time the clock was stopped."""

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens_per_step = tokens_per_step
        self._steps = 0
        self._since: float | None = None

    def tick(self) -> None:
        """Count a finished step. The first one only starts the clock."""
        if self._since is None:
            self._since = time.perf_counter()
        else:
            self._steps += 1

    def tokens_per_second(self) -> float | None:
        """Return the speed since the last call; None if no step has been counted since."""
        if self._since is None or self._steps == 0:
            return None
        now = time.perf_counter()
        speed = self._steps * self._tokens_per_step / (now - self._since)
        self._since, self._steps = now, 0
        return speed

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Exclude the time spent inside the block."""
        start = time.perf_counter()
        yield
        if self._since is not None:
            self._since += time.perf_counter() - start
