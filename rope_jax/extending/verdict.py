"""What an extension has shown, in three sentences that claim no more than was measured."""

import math
from collections.abc import Mapping, Sequence

from rope_jax.console import signed_text
from rope_jax.protocols.base import RELIABLE_UNITS
from rope_jax.report.measured import units_text
from rope_jax.results.statistics import Estimate
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import SampleRow

Found = Mapping[tuple[str, int], tuple[int, int]]
"""By entry and length, how many passkeys were found, and of how many."""

_NOT_MEASURED = (
    "not measured: generated text, questions about a text, other texts, and texts much shorter "
    "than the window"
)


def is_below_truncation(summary: CheckpointSummary, winner: str, length: int) -> bool:
    """Whether an entry's loss at a length is below that at the window, by its whole interval."""
    return summary.curves[winner].above_truncation[length].at_most < 0


def verdict(
    summary: CheckpointSummary, winner: str, length: int, found: Found, candidates: int
) -> list[str]:
    """Return three sentences: at the length, at the window, and on passkeys.

    winner: the entry with the lowest loss at the length; candidates: how many there were, besides
        the model as it is.
    """
    curve = summary.curves[winner]
    return [
        _at_length(summary, winner, length, candidates),
        _at_window(winner, summary.window, curve.above_truncation[summary.window]),
        _passkeys(winner, summary.window, length, found),
    ]


def passkeys_found(rows: Sequence[SampleRow], step: int) -> dict[tuple[str, int], tuple[int, int]]:
    """Count the passkeys of a checkpoint that were found, over all depths."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for row in rows:
        if row.step == step and not row.taken_out:
            exact, answers = found.get((row.name, row.length), (0, 0))
            found[row.name, row.length] = exact + row.exact, answers + row.answers
    return found


def _at_length(summary: CheckpointSummary, winner: str, length: int, candidates: int) -> str:
    above = summary.curves[winner].above_truncation[length]
    truncation = f"truncation to the last {summary.window:,} tokens"
    sampled = f"over {units_text(summary.units, summary.documents)}"
    best = f"{winner}, the best of {candidates} on these texts," if candidates > 1 else winner
    if winner == "trained":
        best = "the model as it is, which loses less than any candidate,"
    if is_below_truncation(summary, winner, length):
        text = f"{best} is better than {truncation}: its loss is lower by {_nats(above.negated())} "
        text += sampled
    elif above.at_least > 0:
        text = f"nothing is better than {truncation}: even {best} loses {_nats(above)} to it "
        text += f"{sampled}, so keep the end of the text alone"
    else:
        text = f"nothing is known to be better than {truncation}: {best} differs from it by "
        text += f"{_nats(above)} {sampled}"
    if not summary.is_reliable:
        what = "documents" if summary.units <= summary.documents else "blocks"
        text += f"; intervals over fewer than {RELIABLE_UNITS} {what} are unreliable, so this is a "
        text += "hint and no finding"
    return f"At {length:,} tokens, {text}."


def _at_window(winner: str, window: int, above: Estimate) -> str:
    place = f"At {window:,} tokens, which the model reads by itself,"
    if above.value == 0 and above.low == above.high:
        return f"{place} {winner} changes nothing."
    if above.at_least > 0:
        return f"{place} {winner} costs {_nats(above)}, which every text of that length pays."
    if above.at_most < 0:
        return f"{place} {winner} is better as well: {_nats(above)}."
    return f"{place} {winner} has no cost that these texts can tell from 0: {_nats(above)}."


def _passkeys(winner: str, window: int, length: int, found: Found) -> str:
    far, inside = found[winner, length], found[winner, window]
    text = f"Of the passkeys further back than {window:,} tokens in texts of {length:,}, {winner} "
    text += f"finds {_count(far)}, and {_count(inside)} in texts of {window:,}"
    if (before := found.get(("trained", length))) and winner != "trained":
        text += f" (the model as it is: {_count(before)} and {_count(found['trained', window])})"
    if 2 * inside[0] < inside[1]:
        text += "; as it misses most of them at the window already, they say little about far text"
    return f"{text}; {_NOT_MEASURED}."


def _count(found: tuple[int, int]) -> str:
    return f"{found[0]} of {found[1]}"


def _nats(above: Estimate) -> str:
    """Return nats with their interval, if there is one."""
    text = f"{signed_text(above.value)} nats per token"
    if not math.isfinite(above.low):
        return f"{text} (one document has no interval)"
    return f"{text} [{signed_text(above.low)}, {signed_text(above.high)}]"
