"""Every point of a comparison as one tidy CSV."""

from typing import Any

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.differences import describe_settings
from rope_jax.results.statistics import Estimate
from rope_jax.runs.tables import format_csv as format_table

_COLUMNS = (
    *("group", "marked", "runs", "seeds", "name", "scaling", "auto", "step", "window"),
    *("map", "factor", "protocol", "length", "first_position", "last_position", "nll", "ci_low"),
    *("ci_high", "ppl", "bpb", "bpb_low", "bpb_high", "tokens", "documents", "units"),
    *("nll_by_seed", "difference", "difference_low", "difference_high"),
    *("gain", "gain_low", "gain_high"),
    *("from_first", "from_first_low", "from_first_high"),
    *("above_truncation", "above_truncation_low", "above_truncation_high", "settings"),
)


def format_csv(comparison: Comparison) -> str:
    """Return one row per point of every checkpoint; nll, differences and gain in nats per token."""
    rows = []
    for curve in comparison.curves:
        of_curve = _curve_cells(curve)
        points = (of_curve | _point_cells(point) for point in curve.points)
        rows += [[point[column] for column in _COLUMNS] for point in points]
    return format_table(_COLUMNS, rows)


def _curve_cells(curve: Curve) -> dict[str, Any]:
    sweeps = curve.group.sweeps_at(curve.step)
    return {
        "group": curve.group.label,
        "marked": curve.group.marked,
        "runs": " ".join(sweep.run for sweep in sweeps),
        "seeds": " ".join(str(sweep.seed) for sweep in sweeps),
        "name": curve.name,
        "scaling": curve.scaling,
        "auto": curve.auto,
        "step": curve.step,
        "window": curve.window,
        "settings": describe_settings(curve.group.settings, briefly=False),
    }


def _point_cells(point: Point) -> dict[str, Any]:
    return {
        "map": point.map,
        "factor": point.factor,
        "protocol": point.protocol,
        "length": point.length,
        "first_position": point.first_position,
        "last_position": point.last_position,
        "nll": point.nll,
        "ci_low": point.ci_low,
        "ci_high": point.ci_high,
        "ppl": point.ppl,
        "bpb": point.bpb,
        "bpb_low": point.bpb_low,
        "bpb_high": point.bpb_high,
        "tokens": point.tokens,
        "documents": point.documents,
        "units": point.units,
        "nll_by_seed": " ".join(map(repr, point.nll_by_seed)),
        **_estimate_cells("difference", point.difference),
        **_estimate_cells("gain", point.gain),
        **_estimate_cells("from_first", point.from_first),
        **_estimate_cells("above_truncation", point.above_truncation),
    }


def _estimate_cells(column: str, estimate: Estimate | None) -> dict[str, float | None]:
    return {
        column: None if estimate is None else estimate.value,
        f"{column}_low": None if estimate is None else estimate.low,
        f"{column}_high": None if estimate is None else estimate.high,
    }
