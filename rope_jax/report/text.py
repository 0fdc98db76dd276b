"""Values, intervals and lengths as text."""

import math
from collections.abc import Iterable, Mapping

from rope_jax.comparison.curves import Point
from rope_jax.config.presentation import Show
from rope_jax.protocols import PROTOCOLS
from rope_jax.results.statistics import Estimate, UsableLength, perplexity

QUANTITIES: Mapping[Show, str] = {
    "perplexity": "perplexity",
    "nats": "nats per token",
    "bits_per_byte": "bits per byte",
}
"""What a table lists, in words."""


def caption(protocol: str, stride: int | None, *, in_full: bool = False) -> str:
    """Return what a protocol's lengths are; in_full: with the tokens that are scored."""
    about = PROTOCOLS[protocol]
    text = about.caption.format(stride="" if stride is None else f"{stride:,}")
    return f"{text}, {about.scored}" if in_full and about.scored else text


def value_text(nll: float, bpb: float | None, show: Show) -> str:
    """Return a loss as text in the quantity to show; nats where bits per byte are unknown."""
    if show == "perplexity":
        return perplexity_text(nll)
    return f"{bpb if show == 'bits_per_byte' and bpb is not None else nll:.3f}"


def perplexity_text(nll: float) -> str:
    """Return exp(nll) as text, as a power of e if it is too large to read."""
    if nll > math.log(1e5):
        return f"e^{nll:.1f}"
    return f"{math.exp(nll):.2f}" if nll < math.log(100) else f"{math.exp(nll):,.0f}"


def interval_text(loss: Estimate, show: Show = "perplexity", digits: int = 2) -> str:
    """Return "±" and half the width of the 95% interval; "" if there is no interval.

    If that exceeds the value itself, return the interval: "[0.05, 2,981]". loss: in nats per token
    for a perplexity, otherwise in the unit to show.
    """
    if not (math.isfinite(loss.low) and math.isfinite(loss.high)):
        return ""
    shown = loss.mapped(perplexity) if show == "perplexity" else loss
    half = (shown.high - shown.low) / 2
    if half <= shown.value and math.isfinite(half):
        return half_width_text(half, digits)
    low, high = (value_text(end, end, show) for end in (loss.low, loss.high))
    return f"[{low}, {high}]"


def half_width_text(half: float, digits: int = 2) -> str:
    """Return "±" and a number with so many digits, and all before the point: "±0.57", "±150"."""
    if half < 1e-3:
        return f"±{half:.{digits}g}"
    rounded = float(f"{half:.{digits}g}")  # 0.996 to 1.0
    decimals = max(0, digits - 1 - math.floor(math.log10(rounded)))
    return f"±{half:,.{decimals}f}"


def signed_text(nats: float) -> str:
    """Return a difference in nats per token with its sign; "0" if it rounds to zero."""
    return "0" if abs(nats) < 0.0005 else f"{nats:+.3f}"


def difference_text(estimate: Estimate | None) -> str:
    """Return a difference with its interval, which need not be symmetric; "" for None."""
    if estimate is None:
        return ""
    shown, *ends = map(signed_text, estimate)
    is_known = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    return f"{shown} [{', '.join(ends)}]" if is_known and {shown, *ends} != {"0"} else shown


def usable_text(usable: UsableLength | None) -> str:
    """Return a usable length as text; "" if it was not measured.

    "≥ 1,024" if the last tested length passes, "none" if not even the window does, "512 (no
    interval)" if the next length has no interval, "–" if the window itself has none.
    """
    if usable is None:
        return ""
    if usable.length is None:
        return "none" if usable.is_known else "–"
    if not usable.is_known:
        return f"{usable.length:,} (no interval)"
    return f"{'≥ ' if usable.is_last else ''}{usable.length:,}"


def effective_text(
    length: int | None, at_least: int | None, at_most: int | None, is_last: bool
) -> str:
    """Return an `EffectiveLength` as text, with its interval where the ends differ.

    "512 [256, 1,024]"; "≥ 2,048" if the longest tested length passes, "none" if not even the
    shortest does.
    """

    shown, low, high = ("none" if n is None else f"{n:,}" for n in (length, at_least, at_most))
    return "≥ " * is_last + shown + (f" [{low}, {high}]" if low != high else "")


def documents_text(documents: int) -> str:
    """Return "1 document" or "64 documents"."""
    return f"{documents:,} document{'s' * (documents != 1)}"


def units_text(units: int, documents: int) -> str:
    """Return what an interval resamples: "64 documents", or "33 blocks of 3 documents"."""
    text = documents_text(documents)
    return text if units <= documents else f"{units:,} blocks of {text}"


def unit_kinds(points: Iterable[Point]) -> list[str]:
    """Return what the intervals of points resample: "document", "block", or both."""
    kinds = {"block" if point.units > point.documents else "document" for point in points}
    return sorted(kinds, reverse=True)
