"""Documents in local files: which files a pattern matches, and the exact text in each.

Nothing is normalised: the text of a document, encoded as UTF-8, is the bytes in the file, after
decompression where the file's name asks for it.
"""

import bz2
import codecs
import glob
import gzip
import io
import itertools
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from rope_jax import stopping
from rope_jax.config.data import DataConfig, JsonLinesData, ParquetData, TextData
from rope_jax.config.messages import shorten
from rope_jax.data.chat import Render, is_chat, render_plainly
from rope_jax.data.splits import Document
from rope_jax.errors import UserError, errors_in, printable

FileData = TextData | JsonLinesData | ParquetData

_PARQUET_ROWS = 256  # read at once; a row may be a book
_ARCHIVES = {".tar", ".tgz", ".zip", ".7z"}


def _open_zstd(file: Path, mode: str) -> Any:
    # Python itself has no zstd before 3.14
    stream: Any = pyarrow.CompressedInputStream(file.open(mode), "zstd")
    return io.BufferedReader(stream)


_DECOMPRESSING: dict[str, Any] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}

Record = tuple[str, str | Mapping[str, Any]]
"""Where it was found, and its text, or columns of which `data.column` is the text."""


def matching_files(data: FileData) -> dict[str, list[Path]]:
    """Find the files of each split that is given; of train alone if `data.files` is a list.

    Each file is returned once, however often and under whatever names it is listed.

    Raises UserError if a pattern matches no regular file, or a file is in two splits.
    """
    by_split = data.files if isinstance(data.files, dict) else {"train": data.files}
    split_of: dict[str, str] = {}
    files = dict[str, list[Path]]()
    for split, patterns in by_split.items():
        if not patterns:
            raise UserError(f"data.files: {split} has no files; name some, or leave {split} out")
        files[split] = []
        for path in itertools.chain.from_iterable(map(_matching, patterns)):
            real = os.path.realpath(path)
            if real not in split_of:
                files[split].append(path)
            other = split_of.setdefault(real, split)
            if other != split:
                raise UserError(
                    f"data.files: {path} is in both {other} and {split}; name it in one"
                )
    return files


def _matching(pattern: str) -> list[Path]:
    """Return the regular files that a path or glob pattern matches, without opening them."""
    expanded = os.path.expanduser(pattern)
    if os.path.isfile(expanded):  # before globbing, as its name may contain a [
        return [Path(expanded)]
    if os.path.isdir(expanded):
        raise UserError(f"data.files: {pattern} is a folder; give a pattern such as {pattern}/**/*")
    matches = sorted(glob.glob(expanded, recursive=True))
    files = [Path(path) for path in matches if os.path.isfile(path)]
    if not files:
        raise UserError(f"data.files: no file matches {pattern or '(nothing)'} in {os.getcwd()}")
    return files


@dataclass(frozen=True)
class Reader:
    """Makes records documents: the first `data.max_documents` that have text, or all.

    render:  makes a conversation a text.
    skipped: gets the names of the records without text, as keys.
    """

    data: DataConfig
    render: Render = render_plainly
    skipped: dict[str, None] = field(default_factory=dict)

    def documents(
        self, sources: Iterable[tuple[str, Iterator[Record]]], none: str, prefix: str = ""
    ) -> Iterator[Document]:
        """Yield the documents of sources, each with its name. prefix: of a record's name in errors.

        UserError: no record of a source has text; or, with the message `none`, there are none.
        """
        count, column = 0, getattr(self.data, "column", "")
        for source, records in sources:
            before, nulls = count, 0
            for name, record in records:
                stopping.check()
                if isinstance(record, str):
                    text: str | None = record
                else:
                    text = _checked_text(record, column, prefix + name, self.render)
                if text is None:
                    nulls += 1
                    self.skipped[name] = None
                    continue
                yield Document(name, text)
                count += 1
                if count == self.data.max_documents:
                    return
            if nulls and count == before:
                every = f"all {nulls:,} records" if nulls > 1 else "its only record"
                raise UserError(
                    f"data.column: {column!r} of {source} has no text in {every}; name a text "
                    "column"
                )
        if not count:
            raise UserError(none)


def read_documents(files: list[Path], data: FileData, reader: Reader) -> Iterator[Document]:
    """Yield the documents of files. UserError: a file cannot be read."""
    sources = ((str(file), _records(file, data)) for file in files)
    return reader.documents(sources, f"data.files: no documents in {', '.join(map(str, files))}")


def _records(file: Path, data: FileData) -> Iterator[Record]:
    suffix = file.suffix.lower()
    name = printable(str(file))
    try:
        if isinstance(data, ParquetData):
            yield from _parquet_rows(file, name, data.column)
            return
        inner = Path(file.stem).suffix if suffix in _DECOMPRESSING else ""
        if {file.suffix, inner} & _ARCHIVES:
            raise UserError(f"data.files: {file} is an archive; unpack it, and name its files")
        with _DECOMPRESSING.get(suffix, Path.open)(file, "rb") as opened:
            if isinstance(data, JsonLinesData):
                yield from _json_records(opened, name)
            else:
                yield name, opened.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"data.files: {file} is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        if suffix in _DECOMPRESSING and getattr(error, "errno", None) is None:
            why += f"; it is damaged, or not what its name ({file.suffix}) says"
        raise UserError(f"data.files: cannot read {file}: {why}") from error


def _json_records(lines: Iterable[bytes], name: str) -> Iterator[Record]:
    """Yield the objects in lines, or the elements of one list, where a text may be an object."""
    lines = iter(lines)
    first = next(lines, b"")
    lines = itertools.chain([first], lines)
    if first.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        rows: Any = enumerate(_parsed(b"".join(lines), name))
    else:
        numbered = ((n, line) for n, line in enumerate(lines, 1) if line.strip())
        rows = ((number, _parsed(line, f"{name}:{number}")) for number, line in numbered)
    for number, row in rows:
        if isinstance(row, str):
            row = {"text": row}
        if not isinstance(row, dict):
            raise UserError(
                f"data.files: {name}:{number} is not a JSON object; write one per line, or a list "
                "of them"
            )
        yield f"{name}:{number}", row


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(
            f"data.files: {where} is not JSON ({error}); write one object per line, or a list of "
            "them, in UTF-8"
        ) from error


def _parquet_rows(file: Path, name: str, column: str) -> Iterator[Record]:
    with (
        errors_in(f"data.files: {file} is not Parquet: ", UserError, pyarrow.ArrowException),
        file.open("rb") as opened,  # pyarrow opens no path that is not UTF-8
        parquet.ParquetFile(opened, page_checksum_verification=True) as table,
    ):
        _require_column(column, table.schema_arrow.names, str(file))
        batches = table.iter_batches(_PARQUET_ROWS, columns=[column])
        values = (value for batch in batches for value in batch.column(0).to_pylist())
        for number, value in enumerate(values):
            yield f"{name}:{number}", {column: value}


def _require_column(column: str, columns: Iterable[str], where: str) -> None:
    if column not in columns:
        names = ", ".join(map(shorten, columns)) or "none"
        raise UserError(f"data.column: {where} has no {column!r}; its columns: {names}")


def _checked_text(record: Mapping[str, Any], column: str, where: str, render: Render) -> str | None:
    """Return the text in the column. UserError: there is none, or it is no text, chat or null."""
    _require_column(column, record, where)
    value = record[column]
    if value is None or value == []:
        return None
    if is_chat(value):
        with errors_in(f"data.column: {column!r} of {where}: ", UserError):
            value = render(value)
    if not isinstance(value, str):
        raise UserError(
            f"data.column: {column!r} of {where} is of type {type(value).__name__}, not text; name "
            "a column of texts, or of conversations: lists of messages with role and content"
        )
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise UserError(
            f"data.column: {column!r} of {where} has half a character (a lone surrogate), which is "
            "not text; fix or remove the line"
        )
    return value
