"""Curves pooled over seeds, with paired differences from the baseline and the first group."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rope_jax import stopping
from rope_jax.comparison.comparable import Mismatch, truncation_key, unit_notes, write_notes
from rope_jax.comparison.groups import Group, Sweep, group_sweeps
from rope_jax.config.presentation import CompareConfig, Presentation
from rope_jax.errors import UserError, errors_in
from rope_jax.protocols import BASELINE
from rope_jax.results import statistics
from rope_jax.results.rows import PointKey, Row
from rope_jax.results.statistics import Estimate, Sums, UsableLength
from rope_jax.results.summary import CheckpointSummary


@dataclass(frozen=True)
class Point:
    """One point of a curve, over all seeds of a group; nll and intervals in nats per token."""

    map: str
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
    bpb_low: float | None
    bpb_high: float | None
    tokens: int
    documents: int
    units: int
    stride: int | None
    nll_by_seed: tuple[float, ...]
    difference: Estimate | None = None
    """From the scaling that the same runs were trained with, at the same length."""
    above_own: Estimate | None = None
    """From truncation with the same runs: this point minus the trained scaling at the window;
    same_tokens only, n ≥ window."""
    from_first: Estimate | None = None
    """From the first group's curve of the same name, paired by document."""
    above_truncation: Estimate | None = None
    """From truncation with the first group's models: `trained` at their window. Paired by document,
    and by seed if both groups have the same seeds; same_tokens only, at every length."""

    @property
    def gain(self) -> Estimate | None:
        """Minus `above_own`: comparison.csv has this sign, as its readers expect."""
        return self.above_own and self.above_own.negated()

    @classmethod
    def of(cls, row: Row, **others: Any) -> "Point":
        """Return the point of a row of results.csv; others: further fields, or replaced ones."""
        shared = {f.name: getattr(row, f.name) for f in fields(cls) if f.name in row._fields}
        return cls(**({"nll_by_seed": (row.nll,)} | shared | others))


@dataclass(frozen=True, eq=False)
class Curve:
    """One scaling of one group at one training step."""

    group: Group
    name: str
    """What figures and tables call it."""
    entry: str
    """Its name in the sweep."""
    step: int
    window: int
    scaling: str
    kind: str
    """`trained`, or the position map's type at the longest length, or the scaling's without."""
    auto: bool
    points: tuple[Point, ...]
    usable: UsableLength | None
    """None where it was not measured."""
    truncation: float | None = None
    """What truncation to the window gives, in nats per token; None where it was not measured."""

    @classmethod
    def of(
        cls, rows: Sequence[Row], points: Sequence[Point], labels: Mapping[str, str], **others: Any
    ) -> "Curve":
        """Return the curve of the rows of one scaling at one step."""
        first = rows[0]
        about = {name: getattr(first, name) for name in ("step", "scaling", "auto")}
        about |= {"entry": first.name, "name": labels.get(first.name, first.name)}
        kind = "trained" if first.name == "trained" else rows[-1].kind
        return cls(**about, kind=kind, points=tuple(points), **others)

    @property
    def is_newest(self) -> bool:
        """Whether it belongs to the last checkpoint of its group."""
        return self.step == self.group.newest

    @property
    def label(self) -> str:
        """The group's label and the scaling's name."""
        return f"{self.group.label}: {self.name}" if self.group.label else self.name


@dataclass(frozen=True)
class Comparison:
    """What the figure, the tables and the page show."""

    groups: list[Group]
    curves: list[Curve]
    tolerance: float
    """How much a usable length may lose, in nats per token."""
    notes: list[str]
    """Warnings for the reader, those about marked groups first."""
    how: Presentation = field(default_factory=Presentation)
    only: bool = False
    """Whether these are the results of a single sweep, shown by itself."""

    @property
    def newest(self) -> list[Curve]:
        """The curves of each group's newest checkpoint."""
        return [curve for curve in self.curves if curve.is_newest]

    @property
    def protocols(self) -> list[str]:
        """The protocols of the newest checkpoints, in the order of their points."""
        return list(dict.fromkeys(point.protocol for c in self.newest for point in c.points))

    @property
    def sweeps(self) -> list[Sweep]:
        return [sweep for group in self.groups for sweep in group.sweeps]

    @property
    def baseline(self) -> str:
        """The name of the curves with the models' own scaling; "the trained scaling" if several."""
        names = {name for sweep in self.sweeps for name in sweep.baselines.values()} or {"trained"}
        if len(names) > 1:
            return "the trained scaling"
        return next((c.name for c in self.curves if c.entry in names), *names)


def compare(
    sweeps: Sequence[Sweep], mismatches: Sequence[Mismatch], config: CompareConfig
) -> Comparison:
    """Pool seeds and pair groups; the sweeps of `mismatches` are marked and stand alone.

    UserError: there is nothing that `config.show` asks for, or that a group's seeds share.
    """
    if config.show == "bits_per_byte" and all(
        None in (row.bpb, row.bpb_low) for sweep in sweeps for row in sweep.rows
    ):
        raise UserError(
            "show: these results have no bits per byte, because the bytes of the scored tokens are "
            "not known; choose perplexity or nats, or sweep again"
        )
    groups = group_sweeps(sweeps, [mismatch.sweep for mismatch in mismatches], config.labels)
    first = next(group for group in groups if not group.marked)
    curves = [
        curve
        for group in groups
        for step in group.steps
        for curve in _Pooling(group, step, first, config).curves()
    ]
    if not any(curve.is_newest for curve in curves):
        raise UserError(f"{groups[0].label}: its seeds have no point in common")
    with errors_in("", UserError):
        config.check_names((c.entry for c in curves), (group.name for group in groups))
    if config.show == "above_truncation" and not any(
        point.above_truncation for curve in curves for point in curve.points
    ):
        raise UserError(
            "show: these results do not have the loss at the window on the same tokens, which "
            "truncation gives; choose perplexity or nats, or sweep with the window among the "
            "lengths and same_tokens among the protocols"
        )
    return Comparison(
        groups=groups,
        curves=curves,
        tolerance=config.tolerance,
        notes=write_notes(groups, mismatches),
        how=config,
    )


def compare_checkpoints(
    rows: Sequence[Row], checkpoints: Sequence[CheckpointSummary], config: Presentation
) -> Comparison:
    """Return the results of one run's sweep as a comparison.

    checkpoints: the newest first. Bits per byte turn into nats where a row has none, and
    losses above truncation where no curve was compared with it.
    """
    newest = checkpoints[0]
    has_bits = all(None not in (row.bpb, row.bpb_low) for row in rows)
    if not {"bits_per_byte": has_bits, "above_truncation": newest.curves}.get(config.show, True):
        config = config.model_copy(update={"show": "nats"})
    windows = {checkpoint.step: checkpoint.window for checkpoint in checkpoints}
    sweep = Sweep(Path(newest.run), newest.run, rows[0].seed, rows, sums={}, windows=windows)
    group = Group(newest.run, (sweep,), name=newest.run)
    curves = []
    for checkpoint in checkpoints:
        at_step = [row for row in rows if row.step == checkpoint.step]
        for name in dict.fromkeys(row.name for row in at_step):
            summary, points = checkpoint.curves.get(name), []
            for row in (of_curve := [row for row in at_step if row.name == name]):
                differences: dict[str, Estimate | None] = {}
                if summary is not None and row.protocol == BASELINE:
                    differences["above_truncation"] = summary.above_truncation.get(row.length)
                    if row.length >= checkpoint.window:
                        differences["above_own"] = differences["above_truncation"]
                    if name != "trained":
                        differences["difference"] = summary.difference_from_trained.get(row.length)
                points.append(Point.of(row, **differences))
            about: dict[str, Any] = {"truncation": checkpoint.nll_at_window}
            usable = None if summary is None else summary.usable
            about |= {"window": checkpoint.window, "group": group, "usable": usable}
            curves.append(Curve.of(of_curve, points, config.labels, **about))
    with errors_in("", UserError):
        config.check_names(curve.entry for curve in curves)
    return Comparison(
        groups=[group],
        curves=curves,
        tolerance=newest.tolerance,
        notes=unit_notes([row for row in rows if row.step == newest.step]),
        how=config,
        only=True,
    )


class _Pooling:
    """Pools the results of a group at one training step over the group's seeds.

    first: the group with which others are compared.
    """

    def __init__(self, group: Group, step: int, first: Group, config: CompareConfig) -> None:
        self._group, self._step = group, step
        # only the newest checkpoints of groups that can be compared
        self._first = None if group.marked or step != group.newest else first
        self._sweeps = group.sweeps_at(step)
        self._window = self._sweeps[0].windows[step]
        self._tolerance, self._labels = config.tolerance, config.labels
        self._bootstrap = {"resamples": config.resamples, "seed": config.seed}

    def curves(self) -> Iterator[Curve]:
        """Yield a curve for each scaling that all seeds have measured."""
        first, *others = (sweep.points_at(self._step) for sweep in self._sweeps)
        rows = [row for key, row in first.items() if all(key in points for points in others)]
        for name in dict.fromkeys(row.name for row in rows):
            stopping.check()
            of_curve = [row for row in rows if row.name == name]
            points = list(map(self._point, of_curve))
            losses = {p.length: p.above_own for p in points if p.above_own is not None}
            units = min(point.units for point in points)
            usable = statistics.established_length(
                losses, self._window, self._tolerance, units=units
            )
            levels = [p.nll - p.above_own.value for p in points if p.above_own is not None]
            yield Curve.of(
                of_curve,
                points,
                self._labels,
                group=self._group,
                window=self._window,
                usable=usable if losses else None,
                truncation=next(filter(math.isfinite, reversed(levels)), None),
            )

    def _point(self, row: Row) -> Point:
        """row: of the first seed."""
        key = PointKey.of(row)
        sums = [sweep.sums[key] for sweep in self._sweeps]
        names = [sweep.baselines.get(self._step) for sweep in self._sweeps]
        baselines = [None if name is None else key._replace(name=name) for name in names]
        above_own = None
        if key.protocol == BASELINE and key.length >= self._window:
            at_window = [truncation_key(sweep, self._step) for sweep in self._sweeps]
            above_own = self._paired(sums, at_window)
        above_truncation = None
        if key.protocol == BASELINE:
            above_truncation = self._from_first(sums, truncation_key, is_paired=True)

        def at_step(_: Sweep, step: int) -> PointKey:
            return key._replace(step=step)

        pooled = statistics.pooled_mean(sums, **self._bootstrap)
        bits = statistics.bits_per_byte(sums, **self._bootstrap) or (None, None, None)
        return Point.of(
            row,
            **dict(zip(("nll", "ci_low", "ci_high"), pooled, strict=True)),
            **dict(zip(("bpb", "bpb_low", "bpb_high"), bits, strict=True)),
            ppl=statistics.perplexity(pooled.value),
            nll_by_seed=tuple(one.mean() for one in sums),
            # None of the baseline itself
            difference=None if set(names) == {key.name} else self._paired(sums, baselines),
            above_own=above_own,
            from_first=None if self._first is self._group else self._from_first(sums, at_step),
            above_truncation=above_truncation,
        )

    def _paired(self, sums: Sequence[Sums], others: Sequence[PointKey | None]) -> Estimate | None:
        """Pool over seeds the difference from another point of each; None if one is missing."""
        differences = []
        for one, other, sweep in zip(sums, others, self._sweeps, strict=True):
            if other is None or other not in sweep.sums:
                return None
            differences.append(statistics.difference(one, sweep.sums[other]))
        return statistics.pooled_mean(differences, **self._bootstrap)

    def _from_first(
        self,
        sums: Sequence[Sums],
        key_of: Callable[[Sweep, int], PointKey],
        *,
        is_paired: bool = False,
    ) -> Estimate | None:
        """Return the difference from a point of the first group; None if it lacks that.

        is_paired: by seed as well, if both groups have the same ones.
        """
        if self._first is None:
            return None
        step = self._first.newest
        keys = {sweep: key_of(sweep, step) for sweep in self._first.sweeps_at(step)}
        if any(key not in sweep.sums for sweep, key in keys.items()):
            return None
        others = {sweep.seed: sweep.sums[key] for sweep, key in keys.items()}
        if is_paired and {sweep.seed for sweep in self._sweeps} == others.keys():
            pairs = zip(sums, (others[sweep.seed] for sweep in self._sweeps), strict=True)
            differences = [statistics.difference(*pair) for pair in pairs]
            return statistics.pooled_mean(differences, **self._bootstrap)
        return statistics.pooled_difference(sums, list(others.values()), **self._bootstrap)
