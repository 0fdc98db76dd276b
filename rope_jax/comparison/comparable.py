"""What may be compared: the same texts, scored tokens and settings of scalings; notes."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rope_jax.comparison.groups import MARK, Group, Sweep
from rope_jax.errors import UserError
from rope_jax.protocols import BASELINE
from rope_jax.protocols.base import RELIABLE_UNITS
from rope_jax.results.rows import PointKey, Row

TRAINED = "trained"
_REMEDIES = {
    "corpus": "they were trained and tested on different texts",
    "split": "sweep them with the same split",
    "bos": "sweep them with the same bos",
    "targets": "sweep them with the same lengths, targets, max_documents, max_blocks, stride and "
    "seed, or choose one sweep of each run with sweep=NAME",
    "scalings": "give one of them another name",
}
# What must be the same in all sweeps that have it: a field, and the part of the sweep that it
# concerns, shown in messages; "" for the whole sweep.
_Condition = tuple[str, str]


class Mismatch(NamedTuple):
    """Why a sweep's results cannot be compared with those before it."""

    sweep: Sweep
    message: str


def find_mismatches(sweeps: Sequence[Sweep]) -> list[Mismatch]:
    """Return one mismatch per sweep and field that differs from the sweeps before it."""
    known: dict[_Condition, tuple[str, Sweep]] = {}
    mismatches = []
    for sweep in sweeps:
        conditions = _conditions(sweep)
        differing = [c for c in conditions if c in known and known[c][0] != conditions[c]]
        for field in dict.fromkeys(field for field, _ in differing):
            parts = [part for other, part in differing if other == field]
            expected, first = known[field, parts[0]]
            where = f" ({', '.join(parts)})" if any(parts) else ""
            message = (
                f"{field}: {first.label} has {expected}, {sweep.label} has "
                f"{conditions[field, parts[0]]}{where}; {_REMEDIES[field]}"
            )
            mismatches.append(Mismatch(sweep, message))
        if not differing:
            known |= {c: (value, sweep) for c, value in conditions.items() if c not in known}
    return mismatches


def refuse_mismatches(mismatches: Sequence[Mismatch]) -> None:
    """Raise a UserError that describes the first kind of mismatch, if there is any."""
    if mismatches:
        first, *others = (mismatch.message for mismatch in mismatches)
        more = f" (and {len(others)} more)" if others else ""
        raise UserError(f"{first}{more}; with force=true they are drawn anyway, and marked")


def _conditions(sweep: Sweep) -> dict[_Condition, str]:
    values: dict[_Condition, set[str]] = defaultdict(set)
    for row in sweep.rows:
        for field in ("corpus", "split", "bos"):
            values[field, ""].add(getattr(row, field))
        # same_tokens scores the same targets at every length; the other protocols, what fits
        at_length = "" if row.protocol == BASELINE else f" {row.length}"
        values["targets", row.protocol + at_length].add(row.targets)
    values |= {("scalings", name): {text} for name, text in sweep.settings.items()}
    return {condition: ", ".join(sorted(texts)) for condition, texts in values.items()}


def truncation_key(sweep: Sweep, step: int) -> PointKey:
    """Return the key of the own scaling at the window: `trained`, or a curve that equals it."""
    key = PointKey(TRAINED, BASELINE, sweep.windows[step], step)
    name = sweep.baselines.get(step)
    return key if key in sweep.sums or name is None else key._replace(name=name)


def write_notes(groups: Sequence[Group], mismatches: Sequence[Mismatch]) -> list[str]:
    """Return one line of plain text per warning, those about marked groups first."""
    rows = [row for group in groups for sweep in group.sweeps for row in sweep.rows]
    notes = [
        f"{MARK} cannot be compared with the sweeps before it: {mismatch.message}"
        for mismatch in mismatches
    ]
    for group in groups:
        notes += _group_notes(group)
    return [*notes, *unit_notes(rows)]


def unit_notes(rows: Sequence[Row]) -> list[str]:
    """Return warnings of intervals that resample blocks of documents, or too few units."""
    fewest = min(rows, key=lambda row: row.units)
    notes, what = [], "documents"
    if fewest.units > fewest.documents:
        what = "blocks"
        notes.append(
            f"intervals resample {fewest.units} blocks of {fewest.documents} documents, which are "
            "too few: they hold for these documents, not for others"
        )
    if fewest.units < RELIABLE_UNITS:
        notes.append(
            f"intervals are unreliable below {RELIABLE_UNITS} {what}; here: {fewest.units}"
        )
    return notes


def _group_notes(group: Group) -> Iterator[str]:
    without = [sweep.run for sweep in group.sweeps if group.newest not in sweep.windows]
    if without:
        yield (
            f"{group.label}: step {group.newest} is shown without {', '.join(without)} "
            "(not measured there)"
        )
    for step in group.steps:  # with the other seeds' mean there, it would be a different curve
        by_seed = [set(sweep.points_at(step)) for sweep in group.sweeps_at(step)]
        missing = sorted(
            key
            for key in set[PointKey]().union(*by_seed)
            if any(key not in keys for keys in by_seed)
        )
        for name, protocol in dict.fromkeys((key.name, key.protocol) for key in missing):
            lengths = [str(k.length) for k in missing if (k.name, k.protocol) == (name, protocol)]
            yield (
                f"{group.label}: {name} by {protocol} at {', '.join(lengths)} (step {step}) was "
                "not measured for every seed and is left out"
            )
    if any(sweep.experiment is None for sweep in group.sweeps):
        yield (
            f"{group.label}: its run has no readable config.yaml, so it is not pooled with other "
            "seeds"
        )
