"""Which sweeps may be compared: same corpus, split, bos and targets, one meaning for each name."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from rope_jax.comparison.sweeps import Sweep
from rope_jax.errors import UserError

_REMEDIES = {
    "corpus": "they were trained and tested on different texts",
    "split": "sweep them with the same split",
    "bos": "sweep them with the same bos",
    "targets": "sweep them with the same lengths, targets, max_documents, max_blocks, stride and "
    "seed, or choose one sweep of each run with sweep=NAME",
    "scalings": "give one of them another name",
}


class Condition(NamedTuple):
    """Something in which sweeps must agree if both have it."""

    field: str
    part: str
    """The part of the sweep it is about, for the reader; "" where it is the whole sweep."""


class Mismatch(NamedTuple):
    """Why a sweep's results cannot be compared with those before it."""

    sweep: Sweep
    message: str


def find_mismatches(sweeps: Sequence[Sweep]) -> list[Mismatch]:
    """Return what keeps each sweep from being compared with those before it; [] if nothing does."""
    known: dict[Condition, tuple[str, Sweep]] = {}
    mismatches = []
    for sweep in sweeps:
        own = _conditions(sweep)
        differing = [c for c in own if c in known and known[c][0] != own[c]]
        for field in dict.fromkeys(condition.field for condition in differing):
            of_field = [condition for condition in differing if condition.field == field]
            value, first = known[of_field[0]]
            parts = ", ".join(filter(None, (condition.part for condition in of_field)))
            message = (
                f"{field}: {first.label} has {value}, {sweep.label} has {own[of_field[0]]}"
                f"{f' ({parts})' if parts else ''}; {_REMEDIES[field]}"
            )
            mismatches.append(Mismatch(sweep, message))
        if not differing:
            known |= {c: (value, sweep) for c, value in own.items() if c not in known}
    return mismatches


def refuse_mismatches(mismatches: Sequence[Mismatch]) -> None:
    """Raise a UserError that names the first mismatch, if there is any."""
    if mismatches:
        more = f" (and {len(mismatches) - 1} more)" if len(mismatches) > 1 else ""
        raise UserError(
            f"{mismatches[0].message}{more}; with force=true they are drawn anyway, and marked"
        )


def _conditions(sweep: Sweep) -> dict[Condition, str]:
    """Return the value of each condition.

    same_tokens scores the same targets at every length; the other protocols score what fits.
    """
    values: dict[Condition, set[str]] = defaultdict(set)
    for row in sweep.rows:
        for field in ("corpus", "split", "bos"):
            values[Condition(field, "")].add(getattr(row, field))
        at_length = "" if row.protocol == "same_tokens" else f" {row.length}"
        values[Condition("targets", row.protocol + at_length)].add(row.targets)
    conditions = {condition: ", ".join(sorted(found)) for condition, found in values.items()}
    return conditions | {
        Condition("scalings", name): settings for name, settings in sweep.settings.items()
    }
