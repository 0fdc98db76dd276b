"""Check that sweeps can be compared: same corpus, split, bos, targets and meaning of each name."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rope_jax.comparison.sweeps import Sweep
from rope_jax.errors import UserError
from rope_jax.protocols import BASELINE

_REMEDIES = {
    "corpus": "they were trained and tested on different texts",
    "split": "sweep them with the same split",
    "bos": "sweep them with the same bos",
    "targets": "sweep them with the same lengths, targets, max_documents, max_blocks, stride and "
    "seed, or choose one sweep of each run with sweep=NAME",
    "scalings": "give one of them another name",
}


class Condition(NamedTuple):
    """Something that must be the same in all sweeps that have it."""

    field: str
    part: str
    """The part of the sweep that it concerns, shown in messages; "" for the whole sweep."""


class Mismatch(NamedTuple):
    """Why a sweep's results cannot be compared with those of `first`, a sweep before it."""

    sweep: Sweep
    field: str
    first: str
    """The label of the sweep that it differs from, and the value there."""
    expected: str
    value: str
    parts: str
    """The parts of the sweep that it concerns; "" for the whole sweep."""


def find_mismatches(sweeps: Sequence[Sweep]) -> list[Mismatch]:
    """Return one mismatch per sweep and field that differs from the sweeps before it."""
    known: dict[Condition, tuple[str, Sweep]] = {}
    mismatches = []
    for sweep in sweeps:
        own = _conditions(sweep)
        differing = [c for c in own if c in known and known[c][0] != own[c]]
        for field in dict.fromkeys(condition.field for condition in differing):
            of_field = [condition for condition in differing if condition.field == field]
            value, first = known[of_field[0]]
            parts = ", ".join(filter(None, (condition.part for condition in of_field)))
            mismatches.append(Mismatch(sweep, field, first.label, value, own[of_field[0]], parts))
        if not differing:
            known |= {c: (value, sweep) for c, value in own.items() if c not in known}
    return mismatches


def describe_mismatches(mismatches: Sequence[Mismatch]) -> list[str]:
    """Return one sentence per field, and sweep that others differ from, with all sweeps that do."""
    sentences: dict[tuple[str, str, str], dict[tuple[str, str], list[str]]] = {}
    for one in mismatches:
        alike = sentences.setdefault((one.field, one.first, one.expected), {})
        alike.setdefault((one.value, one.parts), []).append(one.sweep.label)
    return [
        f"{field}: {first} has {expected}, {_join_sweeps(others)}; {_REMEDIES[field]}"
        for (field, first, expected), others in sentences.items()
    ]


def _join_sweeps(others: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """Return "a has 1, b and c have 2 (same_tokens)"; others: labels by value and parts."""
    clauses = []
    for (value, parts), labels in others.items():
        *most, last = labels
        sweeps = f"{', '.join(most)} and {last} have" if most else f"{last} has"
        clauses.append(f"{sweeps} {value}{f' ({parts})' if parts else ''}")
    return ", ".join(clauses)


def refuse_mismatches(mismatches: Sequence[Mismatch]) -> None:
    """Raise a UserError that describes the first kind of mismatch, if there is any."""
    if mismatches:
        first, *others = describe_mismatches(mismatches)
        more = f" (and {len(others)} more)" if others else ""
        raise UserError(f"{first}{more}; with force=true they are drawn anyway, and marked")


def _conditions(sweep: Sweep) -> dict[Condition, str]:
    """Return the value of each condition.

    same_tokens scores the same targets at every length; the other protocols score what fits.
    """
    values: dict[Condition, set[str]] = defaultdict(set)
    for row in sweep.rows:
        for field in ("corpus", "split", "bos"):
            values[Condition(field, "")].add(getattr(row, field))
        at_length = "" if row.protocol == BASELINE else f" {row.length}"
        values[Condition("targets", row.protocol + at_length)].add(row.targets)
    conditions = {condition: ", ".join(sorted(found)) for condition, found in values.items()}
    return conditions | {
        Condition("scalings", name): settings for name, settings in sweep.settings.items()
    }
