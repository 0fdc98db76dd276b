"""Documents in local files: which files a pattern means, and the exact text in each.

Nothing is normalised: the text of a document, encoded as UTF-8, is the bytes that the file holds.
"""

import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rope_jax.config.data import JsonLinesData, ParquetData, TextData
from rope_jax.errors import UserError

FileData = TextData | JsonLinesData | ParquetData

_PARQUET_ROWS = 256  # read at once; a row may be a book


class Document(NamedTuple):
    """Where a document was found, and its text."""

    document: str
    text: str


def matching_files(data: FileData) -> dict[str, list[Path]]:
    """The files of each split that is given; of train alone, where `data.files` is one list.

    Raises UserError if a pattern matches nothing, or a file is in two splits.
    """
    by_split = data.files if isinstance(data.files, dict) else {"train": data.files}
    if "train" not in by_split:
        others = ", ".join(by_split) or "nothing else"
        raise UserError(f"data.files: train is missing; there is {others}")
    found: dict[str, list[Path]] = {}
    split_of: dict[str, str] = {}
    for split, patterns in by_split.items():
        if not patterns:
            raise UserError(f"data.files: {split} names no files; leave it out or name some")
        unique = {os.path.realpath(p): p for pattern in patterns for p in _matching(pattern)}
        for real, path in unique.items():
            if split_of.setdefault(real, split) != split:
                raise UserError(
                    f"data.files: {path} is in both {split_of[real]} and {split}; name it in one"
                )
        found[split] = list(unique.values())
    return found


def _matching(pattern: str) -> list[Path]:
    expanded = os.path.expanduser(pattern)
    if os.path.isfile(expanded):  # a name may hold a [
        return [Path(expanded)]
    if os.path.isdir(expanded):
        raise UserError(f"data.files: {pattern} is a folder; give a pattern such as {pattern}/**/*")
    paths = [Path(p) for p in sorted(glob.glob(expanded, recursive=True)) if os.path.isfile(p)]
    if not paths:
        raise UserError(f"data.files: no file matches {pattern or '(nothing)'} in {os.getcwd()}")
    return paths


def read_documents(files: list[Path], data: FileData) -> Iterator[dict[str, str]]:
    """Each document of the files, as a row {document, text}.

    Raises UserError naming the file where one cannot be read, is not UTF-8 or not in the format
    of `data.type`, or lacks text in `data.column`; or if there are no documents at all.
    """
    empty = True
    for file in files:
        try:
            for document in _documents(file, data):
                yield document._asdict()
                empty = False
        except UnicodeDecodeError as error:
            raise UserError(
                f"data.files: {file} is not UTF-8 (byte {error.start}); save it as UTF-8"
            ) from error
        except OSError as error:
            raise UserError(f"data.files: cannot read {file}: {error.strerror or error}") from error
    if empty:
        raise UserError(f"data.files: no documents in {', '.join(map(str, files))}")


def _documents(file: Path, data: FileData) -> Iterator[Document]:
    match data:
        case TextData():
            yield Document(str(file), file.read_bytes().decode("utf-8"))
        case JsonLinesData():
            yield from _json_lines(file, data.column)
        case ParquetData():
            yield from _parquet_rows(file, data.column)


def _json_lines(file: Path, column: str) -> Iterator[Document]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file}:{number}"
            try:
                row = json.loads(line.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                raise UserError(f"data.files: {where} is not UTF-8; save it as UTF-8") from error
            except (ValueError, RecursionError) as error:
                why = (
                    "nested too deeply"
                    if isinstance(error, RecursionError)
                    else str(error).partition(";")[0]
                )
                if isinstance(error, json.JSONDecodeError):
                    why = f"{error.msg}, character {error.pos}"
                raise UserError(
                    f"data.files: {where} is not JSON ({why}); give one object a line"
                ) from error
            if not isinstance(row, dict):
                raise UserError(f"data.files: {where} is not a JSON object; give one a line")
            require_column(column, list(row), where)
            yield Document(where, _text(row[column], column, where))


def _parquet_rows(file: Path, column: str) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            require_column(column, table.schema_arrow.names, str(file))
            number = 0
            for batch in table.iter_batches(_PARQUET_ROWS, columns=[column]):
                for value in batch.column(0).to_pylist():
                    where = f"{file}:{number}"
                    yield Document(where, _text(value, column, where))
                    number += 1
    except pyarrow.ArrowException as error:
        message = " ".join(str(error).split())
        raise UserError(f"data.files: {file} is not readable as Parquet: {message}") from error


def require_column(column: str, columns: list[str], where: str) -> None:
    """Raises UserError, with the columns that there are, if `column` is none of them."""
    if column not in columns:
        shown = [name if len(name) <= 60 else name[:57] + "..." for name in columns[:20]]
        shown += [f"{len(columns) - 20} more"] if len(columns) > 20 else []
        there = ", ".join(shown) or "none"
        raise UserError(f"data.column: {where} has no {column!r}; its columns: {there}")


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str):
        kind = "null" if value is None else type(value).__name__
        raise UserError(
            f"data.column: {column!r} of {where} holds {kind}, not text; name a column of text"
        )
    try:
        value.encode("utf-8")  # JSON can spell half a character, "\ud800"
    except UnicodeEncodeError as error:
        raise UserError(
            f"data.column: {column!r} of {where} holds a lone surrogate (character {error.start}), "
            "which is not text; mend or leave out the line"
        ) from error
    return value
