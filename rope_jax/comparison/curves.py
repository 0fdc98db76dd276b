"""Curves over seeds: runs that differ in nothing else are one, with an interval over both."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rope_jax.comparison.comparable import Mismatch
from rope_jax.comparison.sweeps import Key, Sweep
from rope_jax.config.comparison import CompareConfig
from rope_jax.errors import UserError
from rope_jax.evaluation.statistics import (
    RELIABLE_DOCUMENTS,
    Estimate,
    Sums,
    UsableLength,
    difference,
    perplexity,
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
    """A figure over all seeds of a group; nll and intervals in nats a token."""

    factor: float | None
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
    bits_per_nat: float | None
    """Bits a byte of one nat a token; None where it is not known."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One scaling of one group at one training step."""

    group: Group
    name: str
    step: int
    window: int
    scaling: str
    auto: bool
    points: tuple[Point, ...]
    usable: UsableLength | None
    """None where it was not measured."""

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
    tolerance: float
    """Of the usable lengths, in nats a token."""
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
    if not any(curve.is_newest for curve in curves):
        raise UserError(f"{groups[0].label}: its seeds have no figure in common")
    return Comparison(groups, curves, config.tolerance, _notes(groups, found))


def _groups(sweeps: Sequence[Sweep], marked: Sequence[Sweep]) -> list[Group]:
    by_run: dict[str, int] = defaultdict(int)
    for sweep in sweeps:
        by_run[str(sweep.folder.resolve().parent)] += 1
    several = max(by_run.values()) > 1
    members: dict[tuple[str, ...], list[Sweep]] = defaultdict(list)
    for sweep in sweeps:
        alone = sweep.experiment is None or sweep in marked
        key = str(sweep.folder) if alone else sweep.experiment or ""
        members[key, sweep.name if several else ""].append(sweep)
    for group in members.values():
        seeds = {sweep.seed: sweep for sweep in group}
        for sweep in group:
            if seeds[sweep.seed] is not sweep:
                raise UserError(
                    f"{sweep.label} and {seeds[sweep.seed].label} are of one config and one seed, "
                    f"{sweep.seed}: they are not two seeds; give one of them"
                )
    for name in (_short, _runs, _folders):  # the first by which they can be told apart
        labels = [name(group) + f" {group[0].name}" * several for group in members.values()]
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
    window = sweeps[0].windows[step]
    measured = [_measured(sweep, step) for sweep in sweeps]
    by_all = [key for key in measured[0] if all(key in keys for keys in measured)]
    for name in dict.fromkeys(key[0] for key in by_all):
        keys = [key for key in by_all if key[0] == name]
        points = tuple(_point(sweeps, group, first, key, window, config) for key in keys)
        upper = {p.length: -p.gain.at_least for p in points if p.gain is not None}
        usable = usable_length(upper, window, config.tolerance) if upper else None
        row = next(row for row in sweeps[0].rows if (row.name, row.step) == (name, step))
        yield Curve(group, name, step, window, row.scaling, row.auto, points, usable)


def _measured(sweep: Sweep, step: int) -> list[Key]:
    return [(r.name, r.protocol, r.length, r.step) for r in sweep.rows if r.step == step]


def _point(
    sweeps: Sequence[Sweep],
    group: Group,
    first: Group,
    key: Key,
    window: int,
    config: CompareConfig,
) -> Point:
    """sweeps: the group's, all of which have measured this."""
    name, protocol, length, step = key
    row = next(
        row for row in sweeps[0].rows if (row.name, row.protocol, row.length, row.step) == key
    )
    sums = [sweep.sums[key] for sweep in sweeps]
    settings = {"resamples": config.resamples, "seed": config.seed}

    def less(other: Key) -> Estimate | None:
        """This less that of the same runs."""
        pairs = [(one, sweep.sums.get(other)) for one, sweep in zip(sums, sweeps, strict=True)]
        paired = [difference(one, two) for one, two in pairs if two is not None]
        return pooled_mean(paired, **settings) if len(paired) == len(pairs) else None

    loss = None
    if protocol == "same_tokens" and length >= window:
        loss = less(("trained", "same_tokens", window, step))
    pooled = pooled_mean(sums, **settings)
    bits = None if row.bpb is None or not row.nll else row.bpb / row.nll
    bits = bits if bits is not None and math.isfinite(bits) else None
    return Point(
        row.factor,
        protocol,
        length,
        row.first_position,
        row.last_position,
        *pooled,
        perplexity(pooled.value),
        None if bits is None else bits * pooled.value,
        row.tokens,
        row.documents,
        tuple(one.mean() for one in sums),
        None if name == "trained" else less(("trained", protocol, length, step)),
        None if loss is None else Estimate(-loss.value, -loss.high, -loss.low),
        _from_first(group, first, key, sums, settings),
        bits,
    )


def _from_first(
    group: Group,
    first: Group,
    key: Key,
    sums: Sequence[Sums],
    settings: Mapping[str, int],
) -> Estimate | None:
    """Of the newest checkpoint of each; None where the tokens are not the same."""
    if group is first or group.marked or key[3] != group.newest:
        return None
    other = *key[:3], first.newest
    theirs = first.at(first.newest)
    if any(other not in _measured(sweep, first.newest) for sweep in theirs):
        return None
    return pooled_difference(sums, [sweep.sums[other] for sweep in theirs], **settings)


def _left_out(group: Group, step: int) -> Iterator[str]:
    """What not every seed has measured: a mean of fewer of them would be another curve."""
    of_seeds = [set(_measured(sweep, step)) for sweep in group.at(step)]
    missing = {key for keys in of_seeds for key in keys if any(key not in k for k in of_seeds)}
    for name, protocol in dict.fromkeys(key[:2] for key in sorted(missing)):
        lengths = sorted(key[2] for key in missing if key[:2] == (name, protocol))
        yield (
            f"{group.label}: {name} by {protocol} at {', '.join(map(str, lengths))} (step {step}) "
            "was not measured of every seed and is left out there"
        )


def _notes(groups: Sequence[Group], found: Sequence[Mismatch]) -> list[str]:
    notes = [f"{MARK} not comparable with what stands before it: {m.message}" for m in found]
    for group in groups:
        without = [sweep.run for sweep in group.sweeps if group.newest not in sweep.windows]
        if without:
            notes.append(
                f"{group.label}: {', '.join(without)} was not measured at step {group.newest} and "
                "is not in its figures"
            )
        for step in sorted({step for sweep in group.sweeps for step in sweep.windows}):
            notes += _left_out(group, step)
        if any(sweep.experiment is None for sweep in group.sweeps):
            notes.append(f"{group.label}: no config.yaml of its run, so it is in no pool of seeds")
    fewest = min(row.documents for group in groups for s in group.sweeps for row in s.rows)
    if fewest < RELIABLE_DOCUMENTS:
        notes.append(f"intervals are unreliable below {RELIABLE_DOCUMENTS} documents: {fewest}")
    return notes
