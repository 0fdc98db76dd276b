"""The files of a sweep's folder: what is measured in them, written and read.

A file that is missing, damaged or of another version is named in a UserError.
"""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import numpy as np
from pydantic import TypeAdapter

from rope_jax.errors import UserError, file_errors, printable
from rope_jax.protocols import PROTOCOLS
from rope_jax.results.rows import DocumentRow, PointKey, Row
from rope_jax.results.statistics import Sums
from rope_jax.results.summary import CheckpointSummary, CurveSummary
from rope_jax.results.tasks import EffectiveLength, SampleRow, TaskRow, TaskSummary
from rope_jax.runs.logs import finite
from rope_jax.sealed import write_text

MAIN_FILES = ("results.csv", "sweep.yaml", "summary.json")
_Row = TypeVar("_Row", Row, DocumentRow)
_DAMAGED = "{}: is damaged, or was made by another version; sweep again"


class SweepTables(NamedTuple):
    """What a sweep writes."""

    rows: Sequence[Row]
    by_document: Sequence[DocumentRow]
    checkpoints: Sequence[CheckpointSummary]
    """The newest first."""
    task_rows: Sequence[TaskRow] = ()
    samples: Sequence[SampleRow] = ()


def write_results(folder: Path, tables: SweepTables) -> None:
    """Write what was measured."""
    newest, *earlier = map(_checkpoint_content, tables.checkpoints)
    summary = finite(newest | {"earlier": earlier[::-1]})  # in ascending order of step
    files = {
        "results.csv": format_csv(Row._fields, tables.rows),
        "results.jsonl": "".join(json.dumps(finite(row._asdict())) + "\n" for row in tables.rows),
        "documents.csv": format_csv(DocumentRow._fields, tables.by_document),
        "summary.json": json.dumps(summary, indent=2) + "\n",
    }
    if tables.task_rows:
        files["tasks.csv"] = format_csv(TaskRow._fields, tables.task_rows)
        files["samples.csv"] = format_csv(SampleRow._fields, tables.samples)
    for name, text in files.items():
        write_text(folder / name, text)


def format_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV; numbers are written to the last digit, None as an empty cell.

    What a terminal would obey is escaped, as everywhere.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (header, *rows):
        writer.writerow([printable(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue()


def _checkpoint_content(checkpoint: CheckpointSummary) -> dict[str, Any]:
    first = ("run", "step", "window", "nll_at_window", "perplexity_at_window", "bpb_at_window")
    return {
        **{name: getattr(checkpoint, name) for name in first},
        "tolerance_nats": checkpoint.tolerance,
        "documents": checkpoint.documents,
        "resampled": checkpoint.unit_kind,
        "units": checkpoint.units,
        "reliable": checkpoint.is_reliable,
        "compilations": checkpoint.compilations,
        "curves": {name: _curve_content(curve) for name, curve in checkpoint.curves.items()},
        "tasks": {
            task: {name: _task_content(task_summary) for name, task_summary in by_name.items()}
            for task, by_name in checkpoint.tasks.items()
        },
    }


def _task_content(summary: TaskSummary) -> dict[str, Any]:
    effective = summary.effective
    return {
        "threshold": summary.threshold,
        "effective_length": effective.length,
        "effective_length_is_last_tested": effective.is_last,
        "effective_length_at_least": effective.at_least,
        "effective_length_at_most": effective.at_most,
        "exact": {n: share._asdict() for n, share in summary.exact.items()},
    }


def _curve_content(curve: CurveSummary) -> dict[str, Any]:
    by_length = {
        "blow_up": curve.blow_up,
        "above_truncation_nats": curve.above_truncation,
        # the other sign, as scripts that read files of earlier versions expect it
        "gain_over_truncation_nats": {n: e.negated() for n, e in curve.above_truncation.items()},
        "difference_from_trained_nats": curve.difference_from_trained,
    }
    return {
        "usable_length": curve.usable.length,
        "usable_length_is_last_tested": curve.usable.is_last,
        "usable_length_is_known": curve.usable.is_known,
        "usable_length_at_most": curve.usable_at_most.length,
        "usable_length_at_most_is_last_tested": curve.usable_at_most.is_last,
        **{
            name: {length: estimate._asdict() for length, estimate in estimates.items()}
            for name, estimates in by_length.items()
        },
    }


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of a sweep's results.csv, of which there is at least one."""
    path = folder / "results.csv"
    rows = _read_rows(path, Row)
    if not rows or any(row.protocol not in PROTOCOLS for row in rows):
        raise UserError(_DAMAGED.format(path))
    return rows


def read_sums(folder: Path) -> dict[PointKey, Sums]:
    """Return the sums of each point, with the units in the order of their numbers."""
    by_key: dict[PointKey, dict[int, tuple[float, float, float]]] = defaultdict(dict)
    for row in _read_rows(folder / "documents.csv", DocumentRow):
        size = math.nan if row.bytes is None else row.bytes
        key = PointKey(row.name, row.protocol, row.length, row.step)
        by_key[key][row.unit] = row.nll, row.weight, size
    sums = {}
    for key, units in by_key.items():
        nll, weight, size = np.array([units[number] for number in sorted(units)]).T
        sums[key] = Sums(nll, weight, bytes=None if np.isnan(size).any() else size)
    return sums


def read_summary(
    folder: Path,
) -> tuple[list[CheckpointSummary], dict[str, dict[str, EffectiveLength]]]:
    """Return what identifies each checkpoint and its NLL at the window, the newest first.

    Also return the newest one's effective lengths, by task and scaling.
    """
    path = folder / "summary.json"
    names = ("", "_at_least", "_at_most", "_is_last_tested")
    content = _read(path)
    try:
        newest = json.loads(content)
        checkpoints = [
            CheckpointSummary(one["run"], one["step"], one["window"], one["nll_at_window"])
            for one in (newest, *newest["earlier"])
        ]
        effective = {
            label: {
                name: EffectiveLength(*(task[f"effective_length{end}"] for end in names))
                for name, task in by_name.items()
            }
            for label, by_name in newest.get("tasks", {}).items()
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(_DAMAGED.format(path)) from None
    return checkpoints, effective


def _read(path: Path) -> bytes:
    with file_errors(path, advice="sweep again"):
        return path.read_bytes()


def _read_rows(path: Path, row_type: type[_Row]) -> list[_Row]:
    """Return the lines of a CSV file as rows of this type, whose fields are columns."""
    content = _read(path)
    hints = get_type_hints(row_type)
    may_be_empty = {name for name, hint in hints.items() if type(None) in get_args(hint)}
    rows: list[dict[str, str | None]] = []
    try:
        for line in csv.DictReader(io.StringIO(content.decode("utf-8"), newline="")):
            row = {name: line[name] for name in row_type._fields}
            rows.append(row | {name: None for name in may_be_empty if row[name] == ""})
        return TypeAdapter(list[row_type]).validate_python(rows)  # type: ignore[valid-type]
    except (csv.Error, LookupError, ValueError):
        raise UserError(_DAMAGED.format(path)) from None
