"""Perplexities, intervals and usable lengths as text, for tables."""

import math
from collections.abc import Mapping

from rope_jax.config.presentation import Show
from rope_jax.protocols import PROTOCOLS
from rope_jax.results.rows import Row
from rope_jax.results.statistics import Estimate, perplexity

QUANTITIES: Mapping[Show, str] = {
    "perplexity": "perplexity",
    "nats": "nats per token",
    "bits_per_byte": "bits per byte",
}
"""What a table lists, in words."""


def caption(protocol: str, stride: int | None) -> str:
    """Return what the lengths in a protocol's table are, such as "context length"."""
    return PROTOCOLS[protocol].caption.format(stride="" if stride is None else f"{stride:,}")


def value_text(nll: float, bpb: float | None, show: Show) -> str:
    """Return a loss as text in the quantity to show; nats where bits per byte are unknown."""
    if show == "perplexity":
        return perplexity_text(nll)
    return f"{bpb if show == 'bits_per_byte' and bpb is not None else nll:.3f}"


def half_width(row: Row, show: Show) -> float:
    """Return half the width of a row's 95% interval, in bits per byte or in nats per token."""
    if show == "bits_per_byte" and row.bpb_low is not None and row.bpb_high is not None:
        return (row.bpb_high - row.bpb_low) / 2
    return (row.ci_high - row.ci_low) / 2


def perplexity_text(nll: float) -> str:
    """Return exp(nll) as text, as a power of e if it is too large to read."""
    if nll > math.log(1e5):
        return f"e^{nll:.1f}"
    return f"{math.exp(nll):.2f}" if nll < math.log(100) else f"{math.exp(nll):,.0f}"


def interval_text(nll: Estimate) -> str:
    """Return "±" and half the width of the perplexity's 95% interval; "" if there is no interval.

    If half the width exceeds the perplexity itself, return the interval: "[0.05, 2,981]".
    """
    if not (math.isfinite(nll.low) and math.isfinite(nll.high)):
        return ""
    half = (perplexity(nll.high) - perplexity(nll.low)) / 2
    if half <= perplexity(nll.value) and math.isfinite(half):
        return half_width_text(half)
    return f"[{perplexity_text(nll.low)}, {perplexity_text(nll.high)}]"


def half_width_text(half: float, digits: int = 2) -> str:
    """Return "±" and half the width of an interval with so many digits, such as "±0.57" or "±1.0".

    The digits before the decimal point are all shown: "±150".
    """
    if half < 1e-3:
        return f"±{half:.{digits}g}"
    rounded = float(f"{half:.{digits}g}")  # 0.996 to 1.0
    decimals = max(0, digits - 1 - math.floor(math.log10(rounded)))
    return f"±{half:,.{decimals}f}"


def usable_text(length: int | None, is_last: bool, is_known: bool) -> str:
    """Return a `UsableLength` as text.

    "≥ 1,024" if the last tested length passes, "none" if not even the window does, "512 (no
    interval)" if the next length has no interval, "–" if the window itself has none.
    """
    if length is None:
        return "none" if is_known else "–"
    if not is_known:
        return f"{length:,} (no interval)"
    return f"{'≥ ' if is_last else ''}{length:,}"


def effective_text(
    length: int | None, at_least: int | None, at_most: int | None, is_last: bool
) -> str:
    """Return an `EffectiveLength` as text, with its interval where the ends differ.

    "512", "≥ 2,048" if the longest tested length passes, "none" if not even the shortest does,
    "512 [256, 1,024]".
    """

    def text(end: int | None) -> str:
        return "none" if end is None else f"{end:,}"

    shown = f"≥ {text(length)}" if is_last else text(length)
    return shown if at_least == at_most else f"{shown} [{text(at_least)}, {text(at_most)}]"
