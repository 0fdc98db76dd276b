"""Data sets on the Hugging Face hub; code in a data set is never run."""

import itertools
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rope_jax.config.data import HubData
from rope_jax.data.files import Record, checked_text, require_column, with_text
from rope_jax.data.splits import SPLITS, Document, Split
from rope_jax.errors import UserError


def hub_splits(data: HubData, only: str | None, skipped: dict[str, None]) -> dict[str, Split]:
    """Return the splits of a data set that are in SPLITS. UserError, also when they are read.

    only: the split that is needed. Others are not looked at if the data set has it; it may also
        have just one split, under any name.
    skipped: see `with_text`.
    """
    from datasets import load_dataset

    # load_dataset would read a bare name as one of its loaders, and an existing path as local data
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", data.id) or Path(data.id).exists():
        raise UserError(
            f"data.id: {data.id!r} is not the id (owner/name) of a data set on the hub; "
            "for local files use type text, jsonl or parquet"
        )
    try:
        dataset = load_dataset(
            data.id, data.subset, revision=data.revision, streaming=data.streaming
        )
    except Exception as error:  # the network, the hub, the subset's name, a file in the data set
        message = " ".join(str(error).split())
        raise UserError(f"data.id: cannot load {data.id}: {message}") from error
    names = [name for name in SPLITS if name in dataset]
    if only is not None:
        names = [only] if only in dataset else list(dataset) if len(dataset) == 1 else names
    if not names:
        raise UserError(
            f"data.id: {data.id} has no split {', '.join(SPLITS[:-1])} or {SPLITS[-1]}; it has "
            f"{', '.join(dataset)}"
        )
    return {name: partial(_texts, dataset[name], name, data, skipped) for name in names}


def _texts(rows: Any, split: str, data: HubData, skipped: dict[str, None]) -> Iterator[Document]:
    """Yield the documents of a split, which is a Dataset or an IterableDataset."""
    source = f"the {split} split of {data.id}"
    texts = with_text(_records(rows, split, data), skipped, data, source)
    if (first := next(texts, None)) is None:
        raise UserError(f"data.id: {source} has no documents")
    yield from itertools.islice(itertools.chain([first], texts), data.max_documents)


def _records(rows: Any, split: str, data: HubData) -> Iterator[Record]:
    column = data.column
    try:
        if column in (rows.column_names or ()):  # the others need not be decoded
            rows = rows.select_columns([column])
        for number, row in enumerate(rows):
            require_column(column, list(row), data.id)
            where = f"{split}:{number}"
            yield where, checked_text(row[column], column, f"{data.id}, {where},")
    except UserError:
        raise
    except Exception as error:  # the network, the hub, a file in the data set
        message = " ".join(str(error).split())
        raise UserError(f"data.id: cannot read {data.id}: {message}") from error
