"""Read the files in a sweep's folder, or say in a UserError which of them is damaged, and how."""

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rope_jax.comparison.sweeps import PointKey
from rope_jax.config.types import FolderName, NonNegativeInt, PositiveInt
from rope_jax.errors import UserError
from rope_jax.protocols import PROTOCOLS
from rope_jax.results.rows import DocumentRow, Row
from rope_jax.results.statistics import Sums
from rope_jax.results.tasks import EffectiveLength, MetricName, TaskRow
from rope_jax.rope.files import read_limited
from rope_jax.rope.messages import alternatives, shorten
from rope_jax.runs.directory import RUN_CONFIG
from rope_jax.runs.tables import text_of_cell
from rope_jax.sealed import CHECKSUMS, check_content, read_checksums

_MOST_BYTES = 2**28
_MOST_LINES = 4_000_000
_MOST_DIGITS = 15  # in a whole number
_LARGEST = 1e100  # of sums over documents, which then add up to finite numbers
_FROM_ONE = {"length", "last_position", "documents", "units"}
# Columns that earlier versions did not write, with the column that had the same, or None: empty.
_LATER = {
    **{"map": None, "units": "documents", "unit": "document", "metric": None, "value": "nll"},
    **dict.fromkeys(("bpb_low", "bpb_high", "bytes")),
}
_Row = TypeVar("_Row", Row, DocumentRow, TaskRow)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")


class _Task(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    length: PositiveInt | None = Field(alias="effective_length")
    at_least: PositiveInt | None = Field(alias="effective_length_at_least")
    at_most: PositiveInt | None = Field(alias="effective_length_at_most")
    is_last: bool = Field(alias="effective_length_is_last_tested")


class CheckpointSummary(BaseModel):
    """What summary.json says about one checkpoint."""

    model_config = ConfigDict(frozen=True, strict=True)

    run: FolderName
    step: NonNegativeInt
    window: PositiveInt
    nll_at_window: Annotated[float, Field(allow_inf_nan=False)] | None
    """That of `trained`; None if it was not measured."""
    tasks: dict[str, dict[str, _Task]] = Field(default_factory=dict)

    @property
    def effective(self) -> dict[str, dict[str, EffectiveLength]]:
        """Effective lengths, by task and scaling."""
        return {
            task: {name: EffectiveLength(**dict(found)) for name, found in by_name.items()}
            for task, by_name in self.tasks.items()
        }


class _SweepSummary(CheckpointSummary):
    earlier: Annotated[tuple[CheckpointSummary, ...], Field(strict=False)]


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
            by_key[PointKey(row.name, row.protocol, row.length, row.step)][row.unit] = (
                row.nll,
                row.weight,
                math.nan if row.bytes is None else row.bytes,
            )
        sums = {}
        for key, units in by_key.items():
            nll, weight, size = np.array([units[number] for number in sorted(units)]).T
            if not weight.sum():
                raise UserError(
                    f"{path}: every weight of {key.name} at {key.length} by {key.protocol} is 0; "
                    "sweep again"
                )
            sums[key] = Sums(nll, weight, bytes=None if np.isnan(size).any() else size)
        return sums

    def tasks(self) -> list[TaskRow]:
        """Return the rows of tasks.csv; none if the sweep has no tasks."""
        path = self._folder / "tasks.csv"
        if not path.exists() and "tasks.csv" not in (self._checksums or {}):
            return []
        return list(_read_table(path, self._read(path), TaskRow))

    def summaries(self) -> list[CheckpointSummary]:
        """Return the summaries of the checkpoints, the newest first."""
        path = self._folder / "summary.json"
        try:
            newest = _SweepSummary.model_validate_json(self._read(path))
        except ValidationError:
            raise UserError(f"{path}: missing or damaged; sweep again") from None
        return [newest, *newest.earlier]

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


def read_results(path: Path, content: bytes, *, optional: Sequence[str] = ()) -> list[Row]:
    """Return the rows of results.csv; optional: columns of text that may be missing."""
    rows = []
    for row in _read_table(path, content, Row, optional):
        is_known = row.bpb is None or row.bpb_low is not None
        if not is_known and not math.isclose((row.bpb or 0.0) * math.log(2), row.nll):
            row = row._replace(bpb=None)
        rows.append(row)
    if not rows:
        raise UserError(f"{path}: holds no results; sweep again")
    return rows


def _read_table(
    path: Path, content: bytes, kind: type[_Row], optional: Sequence[str] = ()
) -> Iterator[_Row]:
    """Yield the lines of a CSV file as rows of this kind, whose fields are columns."""
    if content.count(b"\n") > _MOST_LINES:
        raise UserError(f"{path}: has more than {_MOST_LINES:,} lines; sweep again")
    try:
        text = content.decode("utf-8")
        table = [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); sweep again") from None
    header: list[str] = table[0] if table else []
    lines = table[1:]
    absent: dict[str, str | None] = dict.fromkeys(optional)
    absent = {new: old for new, old in (absent | _LATER).items() if new not in header}
    missing = [column for column in kind._fields if column not in {*header, *absent}]
    if missing:
        raise UserError(
            f"{path}: has no column {', '.join(missing)}; it is damaged or was made by another "
            "version: sweep again"
        )
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise UserError(f"{path}: line {number} is incomplete; sweep again")
    if not text.endswith("\n"):
        raise UserError(f"{path}: its last line is incomplete; sweep again")
    by_name = dict(zip(header, zip(*lines, strict=True), strict=False)) if lines else {}
    columns = []
    for column, hint in get_type_hints(kind).items():
        types = get_args(hint) or (hint,)
        cells = by_name.get(absent.get(column) or column)
        if cells is None:
            default = None if type(None) in types else "nats" if column == "metric" else ""
            columns.append([default] * len(lines))
        else:
            columns.append(_values(path, column, types, cells))
    yield from map(kind._make, zip(*columns, strict=True))


def _values(path: Path, column: str, types: Sequence[Any], cells: Sequence[str]) -> list[Any]:
    values: dict[str, Any] = {}
    for cell in dict.fromkeys(cells):
        try:
            values[cell] = _value(column, types, text_of_cell(cell))
        except ValueError as error:
            number = cells.index(cell) + 2
            raise UserError(f"{path}: line {number}: {error}; sweep again") from None
    return [values[cell] for cell in cells]


def _value(column: str, types: Sequence[Any], text: str) -> Any:
    if text == "" and type(None) in types:
        return None
    if float in types:
        return _number(column, text)
    if int in types:
        least = int(column in _FROM_ONE)
        number = int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else -1
        if number < least or str(number) != text:
            expected = f"a whole number of at least {least}"
            raise ValueError(f"{column} should be {expected}, not {shorten(repr(text))}")
        return number
    known: Collection[str] = ()
    if bool in types:
        known = "True", "False"
    elif column == "protocol":
        known = PROTOCOLS.keys()
    elif column == "metric":
        known = get_args(MetricName)
    if known and text not in known:
        raise ValueError(f"{column} should be {alternatives([*known])}, not {shorten(repr(text))}")
    if not _NAME.fullmatch(text) and (column, text) != ("map", ""):
        raise ValueError(f"{column} should be a name, not {shorten(repr(text))}")
    return text == "True" if bool in types else text


def _number(column: str, text: str) -> float:
    number = float(text)
    if abs(number) > _LARGEST and math.isfinite(number):
        raise ValueError(f"{column} should be a number of at most {_LARGEST:g}, not {number:g}")
    if column == "weight" and number and not 1 <= number < _LARGEST:  # tokens or windows
        raise ValueError(f"weight should be 0 or a number of at least 1, not {number:g}")
    return number
