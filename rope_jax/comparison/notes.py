"""Warnings for the reader of a comparison."""

from collections.abc import Iterator, Sequence

from rope_jax.comparison.comparable import Mismatch, describe_mismatches
from rope_jax.comparison.groups import MARK, Group
from rope_jax.results.statistics import RELIABLE_UNITS


def write_notes(groups: Sequence[Group], mismatches: Sequence[Mismatch]) -> list[str]:
    """Return one line of plain text per warning, those about marked groups first."""
    notes = [
        f"{MARK} cannot be compared with the sweeps before it: {message}"
        for message in describe_mismatches(mismatches)
    ]
    measured = max(row.length for group in groups for s in group.sweeps for row in s.rows)
    for group in groups:
        notes += _group_notes(group)
        longest = group.sweeps[0].longest
        if longest is not None and longest < measured:
            notes.append(
                f"{group.label}: its curve ends at {longest:,} tokens, because its table of "
                "positions has no more rows"
            )
    rows = [row for group in groups for sweep in group.sweeps for row in sweep.rows]
    fewest = min(rows, key=lambda row: row.units)
    what = "documents"
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


def write_remarks(groups: Sequence[Group]) -> list[str]:
    """Return one line of plain text per curve that stands for `trained`; it is no warning."""
    return [remark for group in groups for remark in _group_remarks(group)]


def _group_remarks(group: Group) -> Iterator[str]:
    for renamed in dict.fromkeys(sweep.renamed for sweep in group.sweeps):
        if renamed is not None:
            yield (
                f"{group.label}: its curve {renamed} is shown as trained, because the model was "
                "trained with this scaling"
            )
    baselines = [name for sweep in group.sweeps for name in sweep.baselines.values()]
    for name in dict.fromkeys(baselines):
        if name not in ("trained", "none"):
            yield (
                f"{group.label}: {name} is the scaling that the model was trained with, so it "
                "serves as the baseline in place of trained"
            )


def _group_notes(group: Group) -> Iterator[str]:
    without = [sweep.run for sweep in group.sweeps if group.newest not in sweep.windows]
    if without:
        yield (
            f"{group.label}: step {group.newest} is shown without {', '.join(without)} "
            "(not measured there)"
        )
    for step in group.steps:
        yield from _missing_points(group, step)
    if any(sweep.experiment is None for sweep in group.sweeps):
        yield (
            f"{group.label}: its run has no readable config.yaml, so it is not pooled with other "
            "seeds"
        )


def _missing_points(group: Group, step: int) -> Iterator[str]:
    """Name the points that some seeds lack; the other seeds' mean would be a different curve."""
    by_seed = [set(sweep.points_at(step)) for sweep in group.sweeps_at(step)]
    missing = {key for keys in by_seed for key in keys if any(key not in k for k in by_seed)}
    for name, protocol in dict.fromkeys((key.name, key.protocol) for key in sorted(missing)):
        lengths = sorted(
            key.length for key in missing if (key.name, key.protocol) == (name, protocol)
        )
        yield (
            f"{group.label}: {name} by {protocol} at {', '.join(map(str, lengths))} (step {step}) "
            "was not measured for every seed and is left out"
        )
