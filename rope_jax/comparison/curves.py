"""Curves over seeds: runs that differ in nothing else are one, with an interval over both."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rope_jax.comparison.comparable import Mismatch
from rope_jax.comparison.schema import CompareConfig
from rope_jax.comparison.sweeps import Sweep
from rope_jax.errors import UserError
from rope_jax.evaluation.results import Row
from rope_jax.evaluation.statistics import (
    RELIABLE_DOCUMENTS,
    Estimate,
    Sums,
    difference,
    pooled_difference,
    pooled_mean,
    usable_length,
)

MARK = "†"


@dataclass(frozen=True, eq=False)
class Group:
    """Sweeps of runs that differ in their seed alone; or one that cannot be compared: `marked`."""

    label: str
    sweeps: tuple[Sweep, ...]
    marked: bool

    def at(self, step: int) -> list[Sweep]:
        """Those that measured the checkpoint of this step."""
        return [sweep for sweep in self.sweeps if step in sweep.windows]

    @property
    def newest(self) -> int:
        """The last step that was measured."""
        return max(step for sweep in self.sweeps for step in sweep.windows)


class Point(NamedTuple):
    """A figure over seeds; nll and intervals in nats a token, interval ends as in results.csv."""

    protocol: str
    length: int
    first_position: int
    last_position: int
    nll: float
    ci_low: float
    ci_high: float
    ppl: float
    bpb: float | None
    tokens: int
    documents: int
    of_seeds: tuple[float, ...]
    """Each seed's own NLL."""
    difference: Estimate | None
    """From `trained` of the same runs, at the same length."""
    gain: Estimate | None
    """Over truncation: `trained` at the window less this; by same_tokens, from the window on."""
    from_first: Estimate | None
    """From the first group's curve of the same name, paired by document."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One scaling of one group at one training step."""

    group: Group
    name: str
    step: int
    window: int
    scaling: str
    factor: float | None
    auto: bool
    points: tuple[Point, ...]
    usable: tuple[int | None, bool] | None
    """(usable length, whether it is the last one tested); None where it was not measured."""

    @property
    def is_newest(self) -> bool:
        """Whether it is of its group's last step."""
        return self.step == self.group.newest

    @property
    def label(self) -> str:
        """Group, its mark, and the scaling."""
        return f"{self.group.label}: {self.name}"


class Comparison(NamedTuple):
    """What the figure, the table and the page show."""

    groups: list[Group]
    curves: list[Curve]
    notes: list[str]
    """What a reader must know of them; marks first."""


def compare(
    sweeps: Sequence[Sweep], found: Sequence[Mismatch], config: CompareConfig
) -> Comparison:
    """Pool and pair; found: what `mismatches` returned, to be marked."""
    groups = _groups(sweeps, [m.sweep for m in found])
    first = next(group for group in groups if not group.marked)
    curves = [
        curve
        for group in groups
        for step in sorted({step for sweep in group.sweeps for step in sweep.windows})
        for curve in _curves(group, step, first, config)
    ]
    return Comparison(groups, curves, _notes(groups, found))


def _groups(sweeps: Sequence[Sweep], marked: Sequence[Sweep]) -> list[Group]:
    by_run: dict[str, int] = defaultdict(int)
    for sweep in sweeps:
        by_run[str(sweep.folder.parent.resolve())] += 1
    several = max(by_run.values()) > 1
    members: dict[tuple[str, ...], list[Sweep]] = defaultdict(list)
    for sweep in sweeps:
        alone = sweep.experiment is None or sweep in marked
        key = str(sweep.folder) if alone else sweep.experiment or ""
        members[key, sweep.folder.name if several else ""].append(sweep)
    for group in members.values():
        seeds = {sweep.seed: sweep for sweep in group}
        for sweep in group:
            if seeds[sweep.seed] is not sweep:
                raise UserError(
                    f"{sweep.label} and {seeds[sweep.seed].label} are of one config and one seed, "
                    f"{sweep.seed}: they are not two seeds; give one of them"
                )
    for name in (_short, _runs, _folders):  # the first by which they can be told apart
        labels = [name(group) + f" {group[0].folder.name}" * several for group in members.values()]
        if len(set(labels)) == len(labels):
            break
    made = []
    for group, label in zip(members.values(), labels, strict=True):
        is_marked = group[0] in marked
        about = f" ({len(group)} seeds)" * (len(group) > 1)
        made.append(Group(label + about + f" {MARK}" * is_marked, tuple(group), is_marked))
    return made


def _short(group: Sequence[Sweep]) -> str:
    """A run's name; of several the first's without what numbers it."""
    name = group[0].run
    return name if len(group) == 1 else re.sub(r"[-_.=]*(s|seed)?[-_.=]*\d*$", "", name) or name


def _runs(group: Sequence[Sweep]) -> str:
    return ", ".join(sweep.run for sweep in group)


def _folders(group: Sequence[Sweep]) -> str:
    return ", ".join(str(sweep.folder) for sweep in group)


def _curves(group: Group, step: int, first: Group, config: CompareConfig) -> Iterator[Curve]:
    sweeps = group.at(step)
    names = dict.fromkeys(row.name for sweep in sweeps for row in sweep.rows if row.step == step)
    for name in names:
        points, upper, window = [], {}, sweeps[0].windows[step]
        keys = dict.fromkeys(
            (row.protocol, row.length)
            for sweep in sweeps
            for row in sweep.rows
            if (row.step, row.name) == (step, name)
        )
        for protocol, length in keys:
            point = _point(group, first, (name, protocol, length, step), window, config)
            points.append(point)
            if point.gain is not None:
                upper[length] = -point.gain.low
        last = next(r for s in sweeps for r in reversed(s.rows) if (r.step, r.name) == (step, name))
        usable = usable_length(upper, window, sweeps[0].tolerance) if upper else None
        yield Curve(
            group, name, step, window, last.scaling, last.factor, last.auto, tuple(points), usable
        )


def _point(
    group: Group, first: Group, key: tuple[str, str, int, int], window: int, config: CompareConfig
) -> Point:
    name, protocol, length, step = key
    rows = [
        (sweep, row)
        for sweep in group.at(step)
        for row in sweep.rows
        if (row.name, row.protocol, row.length, row.step) == key
    ]
    sweeps, row = [sweep for sweep, _ in rows], rows[0][1]
    sums = [sweep.sums[key] for sweep in sweeps]
    settings = {"resamples": config.resamples, "seed": config.seed}

    def less(other: tuple[str, str, int, int]) -> Estimate | None:
        """This less that of the same runs."""
        pairs = [(one, sweep.sums.get(other)) for one, sweep in zip(sums, sweeps, strict=True)]
        paired = [difference(one, two) for one, two in pairs if two is not None]
        return pooled_mean(paired, **settings) if len(paired) == len(pairs) else None

    loss = None
    if protocol == "same_tokens" and length >= window:
        loss = less(("trained", "same_tokens", window, step))
    pooled = pooled_mean(sums, **settings)
    return Point(
        protocol,
        length,
        row.first_position,
        row.last_position,
        *pooled,
        _exp(pooled.value),
        _bpb(row, pooled.value),
        row.tokens,
        row.documents,
        tuple(one.mean() for one in sums),
        None if name == "trained" else less(("trained", protocol, length, step)),
        None if loss is None else Estimate(-loss.value, -loss.high, -loss.low),
        _from_first(group, first, key, sums, settings),
    )


def _from_first(
    group: Group,
    first: Group,
    key: tuple[str, str, int, int],
    sums: Sequence[Sums],
    settings: Mapping[str, int],
) -> Estimate | None:
    """Of the newest checkpoint of each; None where the tokens are not the same."""
    if group is first or group.marked or key[3] != group.newest:
        return None
    other = *key[:3], first.newest
    theirs = [sweep.sums[other] for sweep in first.sweeps if other in sweep.sums]
    return pooled_difference(sums, theirs, **settings) if theirs else None


def _bpb(row: Row, nll: float) -> float | None:
    return None if row.bpb is None or not row.nll else row.bpb / row.nll * nll


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def _notes(groups: Sequence[Group], found: Sequence[Mismatch]) -> list[str]:
    notes = [f"{MARK} not comparable with what stands before it: {m.message}" for m in found]
    for group in groups:
        without = [sweep.run for sweep in group.sweeps if group.newest not in sweep.windows]
        if without:
            notes.append(
                f"{group.label}: {', '.join(without)} was not measured at step {group.newest} and "
                "is not in its figures"
            )
        if any(sweep.experiment is None for sweep in group.sweeps):
            notes.append(f"{group.label}: no config.yaml of its run, so it is in no pool of seeds")
    fewest = min(row.documents for group in groups for s in group.sweeps for row in s.rows)
    if fewest < RELIABLE_DOCUMENTS:
        notes.append(f"intervals are unreliable below {RELIABLE_DOCUMENTS} documents: {fewest}")
    return notes
