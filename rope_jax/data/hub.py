"""Data sets on the Hugging Face hub; code in a data set is never run."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rope_jax.config.data import HubData
from rope_jax.data.files import (
    Document,
    all_null,
    checked_text,
    require_column,
    token_ids_refusal,
    with_text,
)
from rope_jax.data.splits import SPLITS
from rope_jax.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


class StreamedTexts:
    """The documents of a split, read from the hub while they are used. Each pass reads again."""

    def __init__(
        self, rows: "IterableDataset", split: str, data: HubData, skipped: dict[str, None]
    ) -> None:
        """skipped: see `with_text`."""
        self._rows, self._split, self._data, self._skipped = rows, split, data, skipped

    def iter(self, batch_size: int) -> Iterator[dict[str, list[str]]]:
        """Yield the documents as `datasets.Dataset.iter` does: {document: [...], text: [...]}.

        UserError: the hub cannot be read, or a row has no text.
        """
        batch: dict[str, list[str]] = {"document": [], "text": []}
        for row in self.rows():
            for name, value in row.items():
                batch[name].append(value)
            if len(batch["text"]) == batch_size:
                yield batch
                batch = {"document": [], "text": []}
        if batch["text"]:
            yield batch

    def rows(self) -> Iterator[dict[str, str]]:
        """Yield the documents one by one: {document, text}. UserError as `iter`."""
        data, count = self._data, 0
        source = f"the {self._split} split of {data.id}"
        rows = with_text(self._documents(), self._skipped, data, source)
        for row in itertools.islice(rows, data.max_documents):
            count += 1
            yield row
        if not count:
            raise _no_documents(data, self._split)

    def _documents(self) -> Iterator[Document]:
        column = self._data.column
        for number, row in enumerate(self._read()):
            if column not in row:
                require_column(column, list(row), self._data.id)
            where = f"{self._split}:{number}"
            yield Document(where, checked_text(row[column], column, f"{self._data.id}, {where},"))

    def _read(self) -> Iterator[dict[str, Any]]:
        try:
            yield from self._rows
        except UserError:
            raise
        except Exception as error:  # the network, the hub, a file in the data set
            message = " ".join(str(error).split())
            raise UserError(f"data.id: cannot read {self._data.id}: {message}") from error


def hub_splits(
    data: HubData, only: str | None, skipped: dict[str, None]
) -> "dict[str, Dataset | StreamedTexts]":
    """Return the splits of a data set that are in SPLITS, with columns `document` and `text`.

    Downloads go to Hugging Face's own cache; streamed documents are not kept.

    only: the split that is needed. Others are not looked at if the data set has it; it may also
    have just one split, under any name.
    skipped: see `with_text`; rows of a stream are added while they are read.

    Raises UserError.
    """
    from datasets import load_dataset

    # load_dataset would read a bare name as one of its loaders, and an existing path as local data
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", data.id) or Path(data.id).exists():
        raise UserError(
            f"data.id: {data.id!r} is not the id (owner/name) of a data set on the hub; "
            "for local files use type text, jsonl or parquet"
        )
    try:
        found = load_dataset(data.id, data.subset, revision=data.revision, streaming=data.streaming)
    except Exception as error:  # the network, the hub, the subset's name, a file in the data set
        message = " ".join(str(error).split())
        raise UserError(f"data.id: cannot load {data.id}: {message}") from error
    names = [name for name in SPLITS if name in found]
    if only is not None:
        names = [only] if only in found else list(found) if len(found) == 1 else names
    if not names:
        raise UserError(
            f"data.id: {data.id} has no split {', '.join(SPLITS[:-1])} or {SPLITS[-1]}; it has "
            f"{', '.join(found)}"
        )
    if data.streaming:
        return {name: StreamedTexts(found[name], name, data, skipped) for name in names}
    return {name: _texts(found[name], name, data, skipped) for name in names}


def _texts(rows: "Dataset", split: str, data: HubData, skipped: dict[str, None]) -> "Dataset":
    _check_column(rows, split, data)
    is_null = rows.data.column(data.column).is_null().to_numpy()
    (used,) = np.nonzero(~is_null)
    if not len(used):
        raise UserError(all_null(data, f"the {split} split of {data.id}", len(rows)))
    used = used[: data.max_documents]
    rows = rows.select(range(used[-1] + 1))
    _check_content(rows, split, data)
    texts = rows.select_columns([data.column])
    if data.column != "text":  # `datasets` refuses to rename a column to its own name
        texts = texts.rename_column(data.column, "text")
    texts = texts.add_column("document", [f"{split}:{i}" for i in range(len(texts))])
    skipped |= {f"{split}:{i}": None for i in np.flatnonzero(is_null[: len(texts)])}
    return texts if len(used) == len(texts) else texts.select(used)


def _check_column(rows: "Dataset", split: str, data: HubData) -> None:
    """Raise UserError unless a split has a column of texts."""
    if not len(rows):
        raise _no_documents(data, split)
    require_column(data.column, rows.column_names, data.id)
    feature = rows.features[data.column]
    inner = getattr(getattr(feature, "feature", None), "dtype", "")
    if "int" in inner:
        raise UserError(token_ids_refusal(data.column, data.id))
    kind = getattr(feature, "dtype", None) or "a list"
    if kind not in ("string", "large_string"):
        raise UserError(f"data.column: {data.column!r} of {data.id} contains {kind}, not text")


def _check_content(rows: "Dataset", split: str, data: HubData) -> None:
    """Raise UserError if the texts of a split are damaged."""
    import pyarrow

    try:
        rows.data.column(data.column).validate(
            full=True
        )  # reading damaged Arrow data could end the process
    except pyarrow.ArrowException as error:
        files = ", ".join(sorted({file["filename"] for file in rows.cache_files}))
        message = " ".join(str(error).split())
        raise UserError(
            f"data.id: the {split} split of {data.id} is damaged where Hugging Face keeps it "
            f"({message}); delete {files or 'its copy'}"
        ) from error


def _no_documents(data: HubData, split: str) -> UserError:
    return UserError(f"data.id: the {split} split of {data.id} has no documents")
