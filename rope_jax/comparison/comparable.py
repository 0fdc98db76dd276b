"""Which results may stand beside one another: same corpus, split, bos, targets, and one meaning a
name.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from rope_jax.comparison.sweeps import Sweep
from rope_jax.errors import UserError

_MENDING = {
    "corpus": "they were trained and tested on other texts",
    "split": "sweep them with the same split",
    "bos": "sweep them with the same bos",
    "targets": "sweep them with the same lengths, targets, max_documents, max_blocks, stride and "
    "seed, or take one sweep of each run with sweep=NAME",
    "scalings": "give one of them another name",
}


class Fact(NamedTuple):
    """Something that sweeps must agree in, where both have it. place: of what, for the reader."""

    field: str
    place: str


class Mismatch(NamedTuple):
    """Why a sweep's figures cannot be compared with those before it."""

    sweep: Sweep
    message: str


def mismatches(sweeps: Sequence[Sweep]) -> list[Mismatch]:
    """What keeps sweeps from standing beside those named before them; [] is good."""
    known: dict[Fact, tuple[str, Sweep]] = {}
    found = []
    for sweep in sweeps:
        own = _facts(sweep)
        other = [fact for fact in own if fact in known and known[fact][0] != own[fact]]
        for field in dict.fromkeys(fact.field for fact in other):
            of_field = [fact for fact in other if fact.field == field]
            value, first = known[of_field[0]]
            where = ", ".join(filter(None, (fact.place for fact in of_field)))
            what = f"{first.label} has {value}, {sweep.label} {own[of_field[0]]}"
            message = f"{field}: {what}{f' ({where})' if where else ''}; {_MENDING[field]}"
            found.append(Mismatch(sweep, message))
        if not other:
            known |= {fact: (value, sweep) for fact, value in own.items() if fact not in known}
    return found


def refuse(found: Sequence[Mismatch]) -> None:
    """UserError that names what differs, if anything does."""
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UserError(f"{found[0].message}{more}; force=true draws them all the same, marked")


def _facts(sweep: Sweep) -> dict[Fact, str]:
    """same_tokens scores the same at every length, the others at each what fits."""
    values: dict[Fact, set[str]] = defaultdict(set)
    for row in sweep.rows:
        for field in ("corpus", "split", "bos"):
            values[Fact(field, "")].add(getattr(row, field))
        at = "" if row.protocol == "same_tokens" else f" {row.length}"
        values[Fact("targets", row.protocol + at)].add(row.targets)
    facts = {fact: ", ".join(sorted(found)) for fact, found in values.items()}
    return facts | {Fact("scalings", name): text for name, text in sweep.settings.items()}
