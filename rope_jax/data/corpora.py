"""Every source of text as Hugging Face datasets: train, validation, test; no code from data run.

`datasets` takes over a second to import, so it is imported where it is used, and only when there
is no token file yet.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rope_jax.config.data import DataConfig, HubData, StdlibData
from rope_jax.data.files import FileData, matching_files, read_documents, require_column
from rope_jax.data.splits import SPLITS, assign, stable_key
from rope_jax.data.stdlib import stdlib_root, stdlib_splits
from rope_jax.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_ROWS = 16  # held in memory at once; a row may be a book


class Documents(NamedTuple):
    """A source, read."""

    splits: "DatasetDict"
    """train, validation and test, each with the columns `document` (where it is) and `text`."""
    notes: list[str]
    """What a reader should know of the source, one line each."""


def load_documents(data: DataConfig, scratch: Path) -> Documents:
    """Reads a source. A split that it lacks is taken from train, by a hash of the document.

    `scratch` is a folder for Arrow files, to be kept while the datasets are in use; what is
    downloaded from the hub goes to Hugging Face's own cache.

    Raises UserError where the source is missing, unreadable, or has no documents.
    """
    if isinstance(data, StdlibData):
        return _from_stdlib(data)
    given = _from_hub(data) if isinstance(data, HubData) else _from_files(data, scratch)
    return Documents(_with_missing_splits(given, data), [])


def batches(dataset: "Dataset") -> Iterator[dict[str, list[str]]]:
    """The rows of a dataset, a few at a time: {document: [...], text: [...]}."""
    yield from dataset.iter(batch_size=_ROWS)


def _from_stdlib(data: StdlibData) -> Documents:
    from datasets import Dataset, DatasetDict

    sources, notes = stdlib_splits(data, stdlib_root())
    splits = {
        name: Dataset.from_dict(
            {"document": [d.document for d in found], "text": [d.text for d in found]},
            features=_features(),
        )
        for name, found in sources.items()
    }
    return Documents(DatasetDict(splits), notes)


def _from_files(data: FileData, scratch: Path) -> dict[str, "Dataset"]:
    # Not load_dataset("text") or ("json"): they turn CRLF into LF, and text that looks like a
    # date into a timestamp.
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    splits: dict[str, Dataset] = {}
    for name, files in matching_files(data).items():
        try:
            with _no_progress_bars():
                splits[name] = Dataset.from_generator(
                    partial(read_documents, files, data),
                    features=_features(),
                    cache_dir=str(scratch / name),
                    writer_batch_size=_ROWS,
                )
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None  # ours, naming the file
    return splits


def _from_hub(data: HubData) -> dict[str, "Dataset"]:
    from datasets import Dataset, load_dataset

    # A bare name may mean one of the library's own loaders, and a folder's name that folder.
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", data.id) or Path(data.id).exists():
        raise UserError(
            f"data.id: {data.id!r} is not the id of a data set on the hub, owner/name; "
            "for local files use type text, jsonl or parquet"
        )
    try:
        found = load_dataset(data.id, data.subset, revision=data.revision)
    except Exception as error:  # the network, the hub, the subset's name, a file in the data set
        message = " ".join(str(error).split())
        raise UserError(f"data.id: cannot load {data.id}: {message}") from error
    if "train" not in found:
        raise UserError(f"data.id: {data.id} has no train split; it has {', '.join(found)}")
    splits: dict[str, Dataset] = {}
    for name in (name for name in SPLITS if name in found):
        rows = found[name]
        if not len(rows):
            raise UserError(f"data.id: the {name} split of {data.id} has no documents")
        require_column(data.column, rows.column_names, data.id)
        kind = getattr(rows.features[data.column], "dtype", "a list")
        if kind not in ("string", "large_string"):
            raise UserError(f"data.column: {data.column!r} of {data.id} holds {kind}, not text")
        nulls = rows.data.column(data.column).null_count
        if nulls:
            raise UserError(
                f"data.column: {data.column!r} of {data.id} holds null in {nulls} rows of {name}"
            )
        texts = rows.select_columns([data.column]).rename_column(data.column, "text")
        splits[name] = texts.add_column("document", [f"{name}:{i}" for i in range(len(texts))])
    return splits


def _with_missing_splits(given: dict[str, "Dataset"], data: FileData | HubData) -> "DatasetDict":
    from datasets import DatasetDict

    missing = [name for name in SPLITS if name not in given]
    if not missing:
        return DatasetDict(given)
    train = given["train"]
    # By content, so that a copy of a document is in the same split.
    keys = np.fromiter(
        (stable_key(text) for rows in batches(train) for text in rows["text"]),
        np.uint64,
        len(train),
    )
    split = assign(
        keys,
        data.validation_fraction if "validation" in missing else 0.0,
        data.test_fraction if "test" in missing else 0.0,
    )
    taken = {
        name: train.select(np.flatnonzero(split == SPLITS.index(name)))
        for name in ("train", *missing)
    }
    splits = given | taken
    return DatasetDict({name: splits[name] for name in SPLITS})


def _features() -> Any:
    from datasets import Features, Value

    # large_string: offsets of 64 bits, for documents and batches beyond 2 GB.
    return Features({"document": Value("string"), "text": Value("large_string")})


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    disabled = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not disabled:
            enable_progress_bars()
