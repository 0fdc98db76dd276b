"""Every source of text as Hugging Face datasets: train, validation and test.

`datasets` takes over a second to import, so it is imported where it is used: only if the tokens
are not cached yet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rope_jax.config.data import DataConfig, HubData, StdlibData
from rope_jax.data.files import FileData, matching_files, read_documents
from rope_jax.data.hub import hub_splits
from rope_jax.data.splits import SPLITS, assign, stable_key
from rope_jax.data.stdlib import stdlib_root, stdlib_splits

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_ROWS = 16  # held in memory at once; a row may be a book


class Documents(NamedTuple):
    """The documents of a source."""

    splits: "DatasetDict"
    """train, validation and test, with the columns `document` (where it was found) and `text`."""
    notes: list[str]
    """Notes on the source for the user, one line each."""


def load_documents(data: DataConfig, scratch: Path) -> Documents:
    """Read a source. A split that it lacks is taken from train, by a hash of the document.

    scratch: a folder for Arrow files, which must be kept while the datasets are in use.

    Raises UserError if the source is missing or unreadable, or has no documents.
    """
    if isinstance(data, StdlibData):
        return _stdlib_documents(data)
    given = hub_splits(data) if isinstance(data, HubData) else _file_splits(data, scratch)
    return Documents(_with_missing_splits(given, data), [])


def row_batches(dataset: "Dataset") -> Iterator[dict[str, list[str]]]:
    """Yield the rows of a dataset, a few at a time: {document: [...], text: [...]}."""
    yield from dataset.iter(batch_size=_ROWS)


def _stdlib_documents(data: StdlibData) -> Documents:
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


def _file_splits(data: FileData, scratch: Path) -> dict[str, "Dataset"]:
    # load_dataset("text") and ("json") would turn CRLF into LF, and text that looks like a date
    # into a timestamp.
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    splits: dict[str, Dataset] = {}
    for name, files in matching_files(data).files.items():
        try:
            with _no_progress_bars():
                splits[name] = Dataset.from_generator(
                    partial(read_documents, files, data),
                    features=_features(),
                    cache_dir=str(scratch / name),
                    writer_batch_size=_ROWS,
                )
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None  # the cause is ours and names the file
    return splits


def _with_missing_splits(given: dict[str, "Dataset"], data: FileData | HubData) -> "DatasetDict":
    from datasets import DatasetDict

    missing = [name for name in SPLITS if name not in given]
    if not missing:
        return DatasetDict(given)
    train = given["train"]
    # The hash is of the content, so copies of a document go to the same split.
    keys = np.fromiter(
        (stable_key(text) for rows in row_batches(train) for text in rows["text"]),
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

    # large_string has offsets of 64 bits, for documents and batches beyond 2 GB.
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
