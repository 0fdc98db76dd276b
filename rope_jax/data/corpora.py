"""The documents of every source of text: train, validation and test."""

import itertools
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rope_jax.config.data import DataConfig, HubData, StdlibData
from rope_jax.data.chat import Render, render_plainly
from rope_jax.data.files import FileData, Reader, Record, matching_files, read_documents
from rope_jax.data.splits import SPLITS, Document, Split, assign, by_position, cut, stable_key
from rope_jax.data.stdlib import stdlib_root, stdlib_splits
from rope_jax.errors import UserError, errors_in

# What is in memory and tokenized at once, unless one document is longer: the library `tokenizers`
# takes about 130 bytes for each character.
_BATCH, _BATCH_CHARACTERS = 16, 2**22


class Documents(NamedTuple):
    """The documents of a source."""

    splits: dict[str, Split]
    """train, validation and test. What is wrong in their texts is reported when they are read."""
    about: list[str]
    skipped: dict[str, None]
    """Where records without text were found so far, as keys."""

    @property
    def notes(self) -> list[str]:
        """Notes on the source and on what was skipped so far, one line each."""
        if not self.skipped:
            return self.about
        records = f"{len(self.skipped):,} record{'s' * (len(self.skipped) > 1)}"
        first = next(iter(self.skipped))
        return [*self.about, f"skipped {records} without text, the first at {first}"]


def load_documents(
    data: DataConfig, scratch: Path, only: str | None = None, render: Render = render_plainly
) -> Documents:
    """Find the documents of a source. A split that it lacks is taken from train, by a hash.

    Where train has too few documents for that, each is split by position; a source without train
    has empty splits. Then long documents are cut, as `data.split_bytes` says. `data.max_documents`
    limits each split before others are taken from train.

    scratch: a folder for what a stream gives only once, to be kept while the splits are in use.
    only: read this split alone, of texts on which nothing is trained. A source that has just one
        split, under any name, gives all of its documents. The other splits are empty.
    render: makes a conversation a text.

    UserError: the source is unreadable or has no documents; in part only when a split is read.
    """
    reader = Reader(data, render)
    notes: list[str] = []
    given: dict[str, Split]
    if isinstance(data, StdlibData):
        sources, notes = stdlib_splits(data, stdlib_root())
        given = {n: partial(iter, texts[: data.max_documents]) for n, texts in sources.items()}
    elif isinstance(data, HubData):
        given = _hub_splits(data, reader)
    else:
        given = {
            name: partial(read_documents, files, data, reader)
            for name, files in matching_files(data).items()
        }
    if only in given:
        given = {only: given[only]}
    elif only is not None and len(given) == 1:
        given = {only: next(iter(given.values()))}
        notes = [f"{only}: all documents of the source"]
    elif only is not None or not given.keys() & set(SPLITS):
        key, there = "data.id" if data.type == "hub" else "data.files", ", ".join(given) or "none"
        wanted = only or f"{', '.join(SPLITS[:-1])} or {SPLITS[-1]}"
        advice = "" if only is None else "; choose another with split="
        raise UserError(f"{key}: there is no split {wanted}, only {there}{advice}")
    elif not isinstance(data, StdlibData):
        given, notes = _with_missing_splits(given, data, scratch)
    if not isinstance(data, HubData | StdlibData) and data.split_bytes is not None:
        given = {name: partial(cut, split, data.split_bytes) for name, split in given.items()}
    empty = partial(iter, list[Document]())
    return Documents({name: given.get(name, empty) for name in SPLITS}, notes, reader.skipped)


def _hub_splits(data: HubData, reader: Reader) -> dict[str, Split]:
    """Return the splits of a data set, whose code is never run."""
    from datasets import load_dataset

    # load_dataset would read a bare name as one of its loaders, and an existing path as local data
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", data.id) or Path(data.id).exists():
        raise UserError(
            f"data.id: {data.id!r} is not the id (owner/name) of a data set on the hub; "
            "for local files use type text, jsonl or parquet"
        )
    with errors_in(f"data.id: cannot load {data.id}: ", UserError, Exception):
        dataset = load_dataset(
            data.id, data.subset, revision=data.revision, streaming=data.streaming
        )

    def split(name: str) -> Iterator[Document]:
        source = f"the {name} split of {data.id}"
        records = _records(dataset[name], name, data)
        none = f"data.id: {source} has no documents"
        return reader.documents([(source, records)], none, prefix=f"{data.id}, ")

    names = [name for name in dataset if name in SPLITS] or list(dataset)
    return {name: partial(split, name) for name in names}


def _records(rows: Any, split: str, data: HubData) -> Iterator[Record]:
    """Yield the rows of a Dataset or an IterableDataset."""
    with errors_in(f"data.id: cannot read {data.id}: ", UserError, Exception):
        if data.column in (rows.column_names or ()):  # the others need not be decoded
            rows = rows.select_columns([data.column])
        for number, row in enumerate(rows):
            yield f"{split}:{number}", row


def document_batches(split: Split) -> Iterator[list[Document]]:
    """Yield the documents of a split, a few at a time."""
    batch = list[Document]()
    for document in split():
        batch.append(document)
        if len(batch) == _BATCH or sum(len(d.text) for d in batch) >= _BATCH_CHARACTERS:
            yield batch
            batch = []
    if batch:
        yield batch


def _with_missing_splits(
    given: dict[str, Split], data: FileData | HubData, scratch: Path
) -> tuple[dict[str, Split], list[str]]:
    """Take missing splits from train, if there is one; return all splits, and notes."""
    fractions = {"validation": data.validation_fraction, "test": data.test_fraction}
    missing = {name: part for name, part in fractions.items() if name not in given and part > 0}
    if not missing or "train" not in given:
        return given, []
    train = given["train"]
    if isinstance(data, HubData) and data.streaming:  # so that it is read from the hub once
        train = _kept(train, scratch / "train.jsonl")
    # The hash is of the content, so copies of a document go to the same split.
    keys = np.fromiter((stable_key(document.text) for document in train()), np.uint64)
    distinct, notes = len(np.unique(keys)), list[str]()
    if distinct > len(missing):
        assigned = assign(keys, missing.get("validation", 0.0), missing.get("test", 0.0))

        def part(name: str) -> Iterator[Document]:
            return itertools.compress(train(), assigned == SPLITS.index(name))

    else:

        def part(name: str) -> Iterator[Document]:
            for document, text in train():
                yield Document(f"{document}:{name}", by_position(text, missing)[name])

        shares = " and ".join(f"{100 * fraction:g}% {name}" for name, fraction in missing.items())
        what = "one document" if distinct == 1 else "few documents, each"
        notes = [f"{what} split by position: train is its beginning, then come {shares}"]
    return given | {name: partial(part, name) for name in ("train", *missing)}, notes


def _kept(split: Split, path: Path) -> Split:
    """Write the documents of a stream to a file, and return a split that reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(document) + "\n" for document in split())

    def read() -> Iterator[Document]:
        with path.open(encoding="utf-8") as lines:
            yield from (Document(*json.loads(line)) for line in lines)

    return read
