"""Reading a sweep's folder: complete and consistent, or refused with a UserError."""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rope_jax.comparison.sweeps import PointKey, Sweep
from rope_jax.config.load import load
from rope_jax.config.sweep import SweepConfig, SweepEntry
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.evaluation.results import DocumentRow, Row
from rope_jax.evaluation.statistics import Sums

# Keys of a run's config that don't change what is trained: where, how, and what is kept.
_NOT_THE_MODEL = {
    *("name", "seed", "runs_dir", "mesh", "distributed", "checkpoint", "validation"),
    "log_every_steps",
}
_INTEGERS = {
    *("length", "first_position", "last_position", "step", "seed", "tokens", "documents", "stride"),
}
_FLOATS = {"factor", "nll", "ppl", "bpb", "ci_low", "ci_high", "seconds"}
_FLAGS = {"auto", "reliable"}
_MAY_BE_EMPTY = {"factor", "bpb", "stride"}


@dataclass(frozen=True)
class CheckpointSummary:
    """What summary.json says about one checkpoint."""

    run: str
    step: int
    window: int
    nll_at_window: float
    """Of `trained`; nan where it was not measured."""


def read_sweep(folder: Path) -> Sweep:
    """Read one sweep.

    Raises UserError where a file is missing or damaged, or where the files are not of one sweep.
    """
    rows = _read_rows(folder / "results.csv")
    sums = _read_sums(folder / "documents.csv")
    entries = _read_entries(folder / "sweep.yaml")
    _check_figures(folder, rows, sums, {entry.label for entry in entries})
    summaries = _read_summaries(folder / "summary.json")
    windows = {summary.step: summary.window for summary in summaries}
    _check_summaries(folder, rows, sums, summaries)
    config = folder.resolve().parent.parent / "config.yaml"
    lengths = sorted({row.length for row in rows})
    return Sweep(
        folder=folder,
        run=rows[0].run,
        seed=rows[0].seed,
        rows=rows,
        sums=sums,
        windows=windows,
        settings={entry.label: entry.model_dump_json(exclude={"name"}) for entry in entries},
        baselines=_find_baselines(entries, windows, lengths, config),
        experiment=_experiment(config),
    )


def _read_rows(path: Path) -> list[Row]:
    rows = []
    for number, cells in _read_table(path, Row._fields):
        try:
            rows.append(Row(**{field: _value(field, cells[field]) for field in Row._fields}))
        except ValueError as error:
            raise UserError(f"{path}: line {number}: {error}; sweep again") from None
    if not rows:
        raise UserError(f"{path}: holds no results; sweep again")
    return rows


def _value(field: str, text: str) -> Any:
    if text == "" and field in _MAY_BE_EMPTY:
        return None
    if field in _INTEGERS:
        return int(text)
    if field in _FLOATS:
        return float(text)
    if field in _FLAGS:
        if text not in ("True", "False"):
            raise ValueError(f"{field} should be True or False, not {text!r}")
        return text == "True"
    return text


def _read_sums(path: Path) -> dict[PointKey, Sums]:
    """Read the sums of each point, with the documents in the order of their numbers."""
    by_key: dict[PointKey, dict[int, tuple[float, float]]] = defaultdict(dict)
    for number, cells in _read_table(path, DocumentRow._fields):
        try:
            key = PointKey(
                name=cells["name"],
                protocol=cells["protocol"],
                length=int(cells["length"]),
                step=int(cells["step"]),
            )
            by_key[key][int(cells["document"])] = float(cells["nll"]), float(cells["weight"])
        except ValueError as error:
            raise UserError(f"{path}: line {number}: {error}; sweep again") from None
    sums = {}
    for key, documents in by_key.items():
        nll, weight = np.array([documents[number] for number in sorted(documents)]).T
        sums[key] = Sums(nll=nll, weight=weight)
    return sums


def _read_table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line number and the cells of each line of a CSV file, by column."""
    try:
        text = path.read_text(encoding="utf-8")
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        missing = [column for column in columns if column not in (table.fieldnames or ())]
        if missing:
            raise UserError(
                f"{path}: has no column {', '.join(missing)}; it is damaged or was made by another "
                "version: sweep again"
            )
        for number, cells in enumerate(table, start=2):
            if None in cells or None in cells.values():
                raise UserError(f"{path}: line {number} is incomplete; sweep again")
            yield number, cells
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); sweep again") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); sweep again") from None
    if not text.endswith("\n"):
        raise UserError(f"{path}: its last line is incomplete; sweep again")


def _read_entries(path: Path) -> Sequence[SweepEntry]:
    if not path.is_file():
        raise UserError(f"{path}: missing; sweep again")
    return load(SweepConfig, path).scalings


def _read_summaries(path: Path) -> list[CheckpointSummary]:
    """Read what a sweep says about its checkpoints, the newest first."""
    try:
        newest = json.loads(path.read_text(encoding="utf-8"))
        return [
            CheckpointSummary(
                run=raw["run"],
                step=int(raw["step"]),
                window=int(raw["window"]),
                nll_at_window=math.nan if (nll := raw["nll_at_window"]) is None else float(nll),
            )
            for raw in (newest, *newest["earlier"])
        ]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path}: missing or damaged; sweep again") from None


def _check_figures(
    folder: Path, rows: Sequence[Row], sums: Mapping[PointKey, Sums], names: set[str]
) -> None:
    """Refuse rows and documents that disagree: a file was cut short or is another sweep's."""
    keys = {PointKey.of(row) for row in rows}
    # `trained` at the window is in documents.csv even where it is not a curve of the sweep.
    baseline = {
        key
        for key in sums
        if (key.name, key.protocol) == ("trained", "same_tokens") and "trained" not in names
    }
    complete = len(keys) == len(rows) and {key.name for key in keys} == names
    if (
        not complete
        or set(sums) != keys | baseline
        or any(
            len(sums[PointKey.of(row)].nll) != row.documents
            or not _close(sums[PointKey.of(row)].mean(), row.nll)
            for row in rows
        )
    ):
        raise UserError(
            f"{folder}: results.csv and documents.csv disagree: one is cut short or belongs to "
            "another sweep; sweep again"
        )


def _check_summaries(
    folder: Path,
    rows: Sequence[Row],
    sums: Mapping[PointKey, Sums],
    summaries: Sequence[CheckpointSummary],
) -> None:
    """Refuse results of several runs, and a summary of other results."""
    agree = {(s.run, s.step) for s in summaries} == {(row.run, row.step) for row in rows}
    agree &= len({(row.run, row.seed) for row in rows}) == 1
    for summary in summaries:
        found = sums.get(PointKey("trained", "same_tokens", summary.window, summary.step))
        nll = math.nan if found is None or math.isinf(found.mean()) else found.mean()
        agree &= _close(nll, summary.nll_at_window)
    if not agree:
        raise UserError(f"{folder}: its files belong to different sweeps; sweep again")


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def _find_baselines(
    entries: Sequence[SweepEntry],
    windows: Mapping[int, int],
    lengths: Sequence[int],
    config: Path,
) -> dict[int, str]:
    """Return the name of the curve with each checkpoint's own scaling, by training step.

    That is `trained` where the sweep has it; else a curve whose scaling is at every length the one
    that the run's config trained with, such as `none` for a model trained without scaling.
    """
    if any(entry.label == "trained" for entry in entries):
        return dict.fromkeys(windows, "trained")
    try:
        training = load(Config, config)
        scalings = {step: training.stage_scaling(training.stage_at(step)) for step in windows}
    except (UserError, ValueError):  # no config, or not this run's: then it is unknown
        return {}
    return {
        step: entry.label
        for step, window in windows.items()
        for entry in reversed(entries)  # of several, the first of the sweep
        if all(entry.at(n, window, scalings[step]) == scalings[step] for n in lengths)
    }


def _experiment(config: Path) -> str | None:
    """Return a run's config without its seed and without what doesn't change the model."""
    try:
        raw = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if not isinstance(raw, dict):
        return None
    kept = {key: value for key, value in raw.items() if key not in _NOT_THE_MODEL}
    if isinstance(kept.get("data"), dict):
        kept["data"] = {k: v for k, v in kept["data"].items() if k != "cache_dir"}
    return json.dumps(kept, sort_keys=True, default=str)
