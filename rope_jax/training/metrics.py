"""What is logged of a training step or a validation: scalars by tag, and the speed.

Shapes: P buckets of document positions; counts: negative distances, then one per bucket.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Array, Float, Int

from rope_jax.data.distances import distance_edges
from rope_jax.runs.logs import Scalars
from rope_jax.training.step import LossSums, StepMetrics, bucket_edges


def training_scalars(
    metrics: StepMetrics, learning_rate: float, tokens: int, seq_len: int
) -> Scalars:
    """Return the scalars of a training step. tokens: how many the run has trained on so far."""
    sums = metrics.sums
    return {
        "train/loss": float(sums.mean()),
        "train/grad_norm": float(metrics.grad_norm),
        "train/learning_rate": learning_rate,
        "train/tokens": tokens,
        **_by_position("train_loss_at", sums.nll / np.maximum(sums.tokens, 1), seq_len),
        **_by_position("tokens_at", sums.tokens / sums.tokens.sum(), seq_len),
    }


def distance_scalars(pairs: Int[np.ndarray, " counts"], length: int) -> Scalars:
    """Return each bucket's share of the pairs, as `count_distances` counts them.

    Distances below 0 are listed only if there are any.
    """
    buckets = itertools.pairwise([*distance_edges(length), length])
    below, *shares = (pairs / pairs.sum()).tolist()
    scalars = {"distances/below-0": below} if below else {}
    for (first, end), share in zip(buckets, shares, strict=True):
        name = str(first) if end == first + 1 else f"{first}-{end - 1}"
        scalars[f"distances/{name}"] = share
    return scalars


def validation_scalars(sums: LossSums, seq_len: int) -> Scalars:
    """Return the scalars of a validation."""
    losses = sums.nll / np.maximum(sums.tokens, 1)
    scalars = _by_position("validation_loss_at", losses, seq_len)
    return {"validation/loss": float(sums.mean()), **scalars}


def total(parts: Sequence[LossSums]) -> LossSums:
    """Add up the sums of several batches, in float64."""
    columns = zip(*parts, strict=True)
    return LossSums(*(np.stack(column).sum(axis=0, dtype=np.float64) for column in columns))


def _by_position(
    name: str, values: Float[Array | np.ndarray, " P"], seq_len: int
) -> dict[str, float]:
    buckets = itertools.pairwise([*bucket_edges(seq_len), seq_len])
    return {
        f"{name}/{first}-{end - 1}": float(value)
        for (first, end), value in zip(buckets, values, strict=True)
    }


class Clock:
    """Tokens per second between two readings, excluding the time the clock was stopped."""

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens_per_step, self._steps = tokens_per_step, -1  # the first step only starts it
        self._since = 0.0

    def tick(self) -> None:
        """Count a finished step."""
        self._steps += 1
        if not self._steps:
            self._since = time.perf_counter()

    def tokens_per_second(self) -> float | None:
        """Return the speed since the last call; None if no step has been counted since."""
        if self._steps <= 0:
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
        self._since += time.perf_counter() - start
