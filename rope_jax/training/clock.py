"""Tokens a second, without what is not training."""

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Tokens a second between two readings, less what is not training."""

    def __init__(self, tokens_per_step: int) -> None:
        self.tokens_per_step = tokens_per_step
        self._steps = 0
        self._since: float | None = None

    def tick(self) -> None:
        """A step has ended. The first starts the clock: it was spent compiling."""
        if self._since is None:
            self._since = time.perf_counter()
        else:
            self._steps += 1

    def tokens_per_second(self) -> float | None:
        """Since the last call; None before two steps have ended."""
        if self._since is None or self._steps == 0:
            return None
        now = time.perf_counter()
        speed = self._steps * self.tokens_per_step / (now - self._since)
        self._since, self._steps = now, 0
        return speed

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Leave out the time spent inside."""
        start = time.perf_counter()
        yield
        if self._since is not None:
            self._since += time.perf_counter() - start
