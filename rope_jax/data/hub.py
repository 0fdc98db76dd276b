"""Data sets on the Hugging Face hub; code in a data set is never run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rope_jax import stopping
from rope_jax.config.data import HubData
from rope_jax.data.files import checked_text, require_column, token_ids_refusal
from rope_jax.data.splits import SPLITS
from rope_jax.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


class StreamedTexts:
    """The documents of a split, read from the hub while they are used. Each pass reads again."""

    def __init__(self, rows: "IterableDataset", split: str, data: HubData) -> None:
        self._rows, self._split, self._data = rows, split, data

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
        column, count = self._data.column, 0
        for count, row in enumerate(self._read(), start=1):
            stopping.check()
            if column not in row:
                require_column(column, list(row), self._data.id)
            where = f"{self._split}:{count - 1}"
            text = checked_text(row[column], column, f"{self._data.id}, {where},")
            yield {"document": where, "text": text}
        if not count:
            raise _no_documents(self._data, self._split)

    def _read(self) -> Iterator[dict[str, Any]]:
        most = self._data.max_documents
        try:
            yield from self._rows if most is None else self._rows.take(most)
        except UserError:
            raise
        except Exception as error:  # the network, the hub, a file in the data set
            message = " ".join(str(error).split())
            raise UserError(f"data.id: cannot read {self._data.id}: {message}") from error


def hub_splits(data: HubData, only: str | None = None) -> "dict[str, Dataset | StreamedTexts]":
    """Return the splits of a data set that are in SPLITS, with columns `document` and `text`.

    Downloads go to Hugging Face's own cache; streamed documents are not kept.

    only: the split that is needed. Others are not looked at if the data set has it; it may also
    have just one split, under any name.

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
        return {name: StreamedTexts(found[name], name, data) for name in names}
    return {name: _texts(found[name], name, data) for name in names}


def _texts(rows: "Dataset", split: str, data: HubData) -> "Dataset":
    if data.max_documents is not None:
        rows = rows.select(range(min(data.max_documents, len(rows))))
    _check_texts(rows, split, data)
    texts = rows.select_columns([data.column])
    if data.column != "text":  # `datasets` refuses to rename a column to its own name
        texts = texts.rename_column(data.column, "text")
    return texts.add_column("document", [f"{split}:{i}" for i in range(len(texts))])


def _check_texts(rows: "Dataset", split: str, data: HubData) -> None:
    """Raise UserError unless every row of a split has text."""
    import pyarrow

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
    column = rows.data.column(data.column)
    try:
        column.validate(full=True)  # reading damaged Arrow data could end the process
    except pyarrow.ArrowException as error:
        files = ", ".join(sorted({file["filename"] for file in rows.cache_files}))
        message = " ".join(str(error).split())
        raise UserError(
            f"data.id: the {split} split of {data.id} is damaged where Hugging Face keeps it "
            f"({message}); delete {files or 'its copy'}"
        ) from error
    nulls = column.null_count
    if nulls:
        plural = "" if nulls == 1 else "s"
        raise UserError(
            f"data.column: {data.column!r} of {data.id} is null in {nulls} row{plural} of {split}"
        )


def _no_documents(data: HubData, split: str) -> UserError:
    return UserError(f"data.id: the {split} split of {data.id} has no documents")
