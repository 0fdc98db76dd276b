"""The numbers of a comparison as text, in the quantity that its tables list."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.config.presentation import Show
from rope_jax.report.text import half_width_text, interval_text, perplexity_text
from rope_jax.results.statistics import RELIABLE_UNITS, Estimate, perplexity

# As in the tables of sweeps.
BEST, BELOW_TRUNCATION = "•", "*"


class Cell(NamedTuple):
    """A value of a table and its interval as text."""

    value: str
    interval: str
    """"±" and half its width, or its ends in brackets where these say more; "" if there is none."""
    halves: tuple[str, str]
    """"±" and half the interval's width, with two digits and with one; "" if there is none, or if
    `interval` has its ends."""
    is_below_truncation: bool
    """Whether it is below what truncation costs by more than the interval of the difference."""

    @property
    def text(self) -> str:
        """The whole cell, with a mark if it is below truncation."""
        return (
            f"{self.value} {self.interval}".rstrip() + BELOW_TRUNCATION * self.is_below_truncation
        )


EMPTY = Cell("", "", ("", ""), False)


def cell(point: Point, show: Show) -> Cell:
    """Return a point's value and interval, in what `show` names; empty where that is unknown."""
    is_reliable = point.units >= RELIABLE_UNITS
    gains = is_reliable and point.gain is not None and point.gain.at_least > 0
    if show == "perplexity":
        nll = Estimate(value=point.nll, low=point.ci_low, high=point.ci_high)
        interval = interval_text(nll)
        halves = _halves(perplexity(point.ci_low), perplexity(point.ci_high))
        if interval.startswith("["):
            halves = "", ""
        return Cell(perplexity_text(point.nll), interval, halves, gains)
    value, low, high = point.nll, point.ci_low, point.ci_high
    if show == "bits_per_byte":
        if point.bpb is None or point.bpb_low is None or point.bpb_high is None:
            return EMPTY
        value, low, high = point.bpb, point.bpb_low, point.bpb_high
    halves = _halves(low, high)
    interval = halves[0]
    if interval and (high - low) / 2 > value:
        interval, halves = f"[{low:.3f}, {high:.3f}]", ("", "")
    return Cell(f"{value:.3f}", interval, halves, gains)


def gain_text(point: Point) -> str:
    """Return the gain over truncation in nats per token, with half its interval; "" if unknown."""
    if point.gain is None:
        return ""
    value, low, high = point.gain
    shown = signed_text(value)
    if shown == signed_text(low) == signed_text(high) == "0":
        return "0"
    return f"{shown} {_halves(low, high)[0]}".rstrip()


def signed_text(nats: float) -> str:
    """Return a difference in nats per token with its sign; "0" if it rounds to zero."""
    return "0" if abs(nats) < 0.0005 else f"{nats:+.3f}"


def best_at(curves: Iterable[Curve], protocol: str, show: Show) -> dict[int, str]:
    """Return the lowest value at each length, as `cell` shows it.

    Marked groups do not count. What most curves share, as inside the window, is not the best.
    """
    points: dict[int, list[Point]] = {}
    for curve in curves:
        for point in curve.points:
            if point.protocol == protocol and not curve.group.marked:
                points.setdefault(point.length, []).append(point)
    best = {}
    for length, at_length in points.items():
        known = [point for point in at_length if not math.isnan(point.nll)]
        if not known:
            continue
        lowest = cell(min(known, key=lambda point: point.nll), show).value
        sharing = sum(cell(point, show).value == lowest for point in known)
        if 2 * sharing <= len(known):
            best[length] = lowest
    return best


def units_text(units: int, documents: int) -> str:
    """Return what an interval resamples: "64 documents", or "33 blocks of 3 documents"."""
    of_documents = f"{documents:,} document{'s' * (documents != 1)}"
    return of_documents if units <= documents else f"{units:,} blocks of {of_documents}"


def units_of(points: Iterable[Point]) -> str:
    """Return what the intervals of points resample: "documents", "blocks", or both."""
    kinds = {"blocks" if point.units > point.documents else "documents" for point in points}
    return " and ".join(sorted(kinds, reverse=True))


def pairing_text(points: Iterable[Point]) -> str:
    """Return how the differences of points are paired: "paired by document", or "by block"."""
    kinds = {"block" if point.units > point.documents else "document" for point in points}
    return f"paired by {' or '.join(sorted(kinds, reverse=True))}"


def all_points(comparison: Comparison) -> list[Point]:
    """Return the points of all curves."""
    return [point for curve in comparison.curves for point in curve.points]


def sampling_text(comparison: Comparison) -> str:
    """Return what the intervals of a comparison are over, such as "documents and seeds"."""
    several = [len(group.sweeps) > 1 for group in comparison.groups]
    seeds = " and seeds" if all(several) else " and, where a group has several, seeds"
    return units_of(all_points(comparison)) + seeds * any(several)


def has_single_seeds(comparison: Comparison) -> bool:
    """Whether a group has one seed, so that its intervals say nothing about other seeds."""
    return any(len(group.sweeps) == 1 for group in comparison.groups)


def _halves(low: float, high: float) -> tuple[str, str]:
    half = (high - low) / 2
    if not math.isfinite(half):
        return "", ""
    return half_width_text(half), half_width_text(half, digits=1)
