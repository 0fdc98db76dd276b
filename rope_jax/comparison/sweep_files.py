"""Read the files in a sweep's folder, or say in a UserError which of them is damaged."""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from rope_jax.comparison.sweeps import PointKey
from rope_jax.errors import UserError
from rope_jax.protocols import PROTOCOLS
from rope_jax.results.rows import DocumentRow, Row
from rope_jax.results.statistics import Sums
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import EffectiveLength, TaskRow
from rope_jax.rope.files import read_limited
from rope_jax.rope.messages import alternatives, explain_error
from rope_jax.runs.directory import RUN_CONFIG
from rope_jax.runs.tables import text_of_cell
from rope_jax.sealed import CHECKSUMS, check_content, read_checksums

_MOST_BYTES = 2**28
# What stands for a column that earlier versions did not write: another column, or a value.
_SAME_AS = {"units": "documents", "unit": "document", "value": "nll"}
_DEFAULTS = {"map": "", "metric": "nats"} | dict.fromkeys(("bpb_low", "bpb_high", "bytes"), "")
_Row = TypeVar("_Row", Row, DocumentRow, TaskRow)


class SweepFiles:
    """The results in one sweep's folder, checked against its checksums if it has any."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._checksums = read_checksums(folder)
        except OSError as error:
            path = folder / CHECKSUMS
            raise UserError(f"{path}: cannot be read ({error.strerror}); sweep again") from None

    def rows(self) -> list[Row]:
        path = self._folder / "results.csv"
        return read_results(path, self._read(path))

    def sums(self) -> dict[PointKey, Sums]:
        """Return the sums of each point, with the units in the order of their numbers."""
        by_key: dict[PointKey, dict[int, tuple[float, float, float]]] = defaultdict(dict)
        path = self._folder / "documents.csv"
        for row in _read_table(path, self._read(path), DocumentRow):
            size = math.nan if row.bytes is None else row.bytes
            key = PointKey(row.name, row.protocol, row.length, row.step)
            by_key[key][row.unit] = row.nll, row.weight, size
        sums = {}
        for key, units in by_key.items():
            nll, weight, size = np.array([units[number] for number in sorted(units)]).T
            sums[key] = Sums(nll, weight, bytes=None if np.isnan(size).any() else size)
        return sums

    def tasks(self) -> list[TaskRow]:
        """Return the rows of tasks.csv; none if the sweep has no tasks."""
        path = self._folder / "tasks.csv"
        if not path.exists() and "tasks.csv" not in (self._checksums or {}):
            return []
        return _read_table(path, self._read(path), TaskRow)

    def summary(self) -> tuple[list[CheckpointSummary], dict[str, dict[str, EffectiveLength]]]:
        """Return all checkpoints, the newest first, and its effective lengths by task and scaling.

        Of a checkpoint, only what identifies it and the NLL at its window are read.
        """
        path = self._folder / "summary.json"
        names = ("", "_at_least", "_at_most", "_is_last_tested")
        try:
            newest = json.loads(self._read(path))
            checkpoints = [
                CheckpointSummary(one["run"], one["step"], one["window"], one["nll_at_window"])
                for one in (newest, *newest["earlier"])
            ]
            effective = {
                task: {
                    name: EffectiveLength(*(found[f"effective_length{end}"] for end in names))
                    for name, found in by_name.items()
                }
                for task, by_name in newest.get("tasks", {}).items()
            }
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UserError(f"{path}: missing or damaged; sweep again") from None
        return checkpoints, effective

    def run_config(self) -> Path:
        """Return the file with the run's config: that of the time of the sweep, if there is one."""
        path = self._folder / RUN_CONFIG
        if self._checksums is not None and RUN_CONFIG in self._checksums:
            self._read(path)
            return path
        return self._folder.resolve().parent.parent / "config.yaml"

    def _read(self, path: Path) -> bytes:
        try:
            content = read_limited(path, _MOST_BYTES)
        except OSError as error:
            what = "missing" if isinstance(error, FileNotFoundError) else "cannot be read"
            raise UserError(f"{path}: {what} ({error.strerror}); sweep again") from None
        check_content(path, content, self._checksums)
        return content


def read_results(
    path: Path, content: bytes, defaults: Mapping[str, str] | None = None
) -> list[Row]:
    """Return the rows of results.csv; defaults: of columns that may be missing."""
    rows = []
    for number, row in enumerate(_read_table(path, content, Row, defaults or {}), start=2):
        if row.protocol not in PROTOCOLS:
            known = alternatives(list(PROTOCOLS))
            raise UserError(f"{path}: line {number}: protocol should be {known}; sweep again")
        is_known = row.bpb is None or row.bpb_low is not None
        # earlier versions wrote bits per byte of all texts, which count where a token is a byte
        if not is_known and not math.isclose((row.bpb or 0.0) * math.log(2), row.nll):
            row = row._replace(bpb=None)
        rows.append(row)
    if not rows:
        raise UserError(f"{path}: holds no results; sweep again")
    return rows


def _read_table(
    path: Path, content: bytes, kind: type[_Row], defaults: Mapping[str, str] | None = None
) -> list[_Row]:
    """Return the lines of a CSV file as rows of this kind, whose fields are columns."""
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
        table: list[list[str]] = [line for line in reader if line]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); sweep again") from None
    header: list[str] = table[0] if table else []
    lines = table[1:]
    later: dict[str, str] = {**_DEFAULTS, **(defaults or {})}
    missing = [name for name in kind._fields if name not in {*header, *later, *_SAME_AS}]
    if missing:
        raise UserError(
            f"{path}: has no column {', '.join(missing)}; it is damaged or was made by another "
            "version: sweep again"
        )
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise UserError(f"{path}: line {number} is incomplete; sweep again")
    by_name: dict[str, Sequence[str]] = dict(zip(header, zip(*lines, strict=True), strict=False))
    by_name = {name: [value] * len(lines) for name, value in later.items()} | by_name
    by_name = {name: by_name.get(same, ()) for name, same in _SAME_AS.items()} | by_name
    columns = [
        _values(path, column, hint, by_name.get(column, ()))
        for column, hint in get_type_hints(kind).items()
    ]
    return list(map(kind._make, zip(*columns, strict=True)))


def _values(path: Path, column: str, hint: object, cells: Sequence[str]) -> Sequence[object]:
    has_none = type(None) in get_args(hint)
    texts = [None if cell == "" and has_none else text_of_cell(cell) for cell in cells]
    try:
        return TypeAdapter(list[hint]).validate_python(texts)  # type: ignore[valid-type]
    except ValidationError as error:
        first = error.errors()[0]
        wrong = explain_error(first, column)
        raise UserError(f"{path}: line {int(first['loc'][0]) + 2}: {wrong}; sweep again") from None
