"""Every source of text as Hugging Face datasets: train, validation and test.

`datasets` takes over a second to import, so it is imported where it is used: only if the tokens
are not cached yet.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.config.data import DataConfig, HubData, StdlibData
from rope_jax.data.files import FileData, matching_files, read_documents
from rope_jax.data.hub import StreamedTexts, hub_splits
from rope_jax.data.splits import SPLITS, assign, by_position, part_rows, stable_key
from rope_jax.data.stdlib import stdlib_root, stdlib_splits
from rope_jax.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

_ROWS = 16  # held in memory at once; a row may be a book


class Documents(NamedTuple):
    """The documents of a source."""

    splits: "dict[str, Dataset | StreamedTexts]"
    """train, validation and test, with the columns `document` (where it was found) and `text`."""
    about: list[str]
    """Notes on the source for the user, one line each."""
    skipped: dict[str, None]
    """Where records without text were found, as keys; those of a stream once it has been read."""

    @property
    def notes(self) -> list[str]:
        """Notes on the source and on what was skipped so far, one line each."""
        if not self.skipped:
            return self.about
        records = f"{len(self.skipped):,} record{'s' * (len(self.skipped) > 1)}"
        return [
            *self.about,
            f"skipped {records} whose text is null, the first at {next(iter(self.skipped))}",
        ]


def load_documents(data: DataConfig, scratch: Path, only: str | None = None) -> Documents:
    """Read a source. A split that it lacks is taken from train, by a hash of the document.

    Where train has too few documents for that, such as one long file, each is split by position;
    see `splits.by_position`. Then long documents are cut, as `data.split_bytes` says.
    A source without train has empty splits instead. `data.max_documents` limits each split of the
    source, before others are taken from train.

    scratch: a folder for Arrow files, which must be kept while the datasets are in use.
    only: read this split alone, of texts on which nothing is trained. A source that has just one
    split, under any name, gives all of its documents. The other splits are empty.

    Records whose text is null are skipped.

    Raises UserError if the source is missing or unreadable, or has no documents.
    """
    if isinstance(data, StdlibData):
        return _stdlib_documents(data, only)
    skipped: dict[str, None] = {}
    if isinstance(data, HubData):
        given = hub_splits(data, only, skipped)
    else:
        given = _file_splits(data, scratch, only, skipped)
    if only is None:
        given, notes = _with_missing_splits(given, data, scratch)
    else:
        given, notes = _one_split(given, only, "data.id" if data.type == "hub" else "data.files")
    most_bytes = None if isinstance(data, HubData) else data.split_bytes
    if most_bytes is not None:
        given = {
            name: _written_to(
                scratch / f"{name}-parts", partial(part_rows, row_batches(split), most_bytes)
            )
            for name, split in given.items()
        }
    return Documents({name: given.get(name, _no_documents()) for name in SPLITS}, notes, skipped)


def row_batches(dataset: "Dataset | StreamedTexts") -> Iterator[dict[str, list[str]]]:
    """Yield the rows of a dataset, a few at a time: {document: [...], text: [...]}."""
    yield from dataset.iter(batch_size=_ROWS)


def _one_split(
    given: "dict[str, Dataset | StreamedTexts]", only: str, key: str
) -> "tuple[dict[str, Dataset | StreamedTexts], list[str]]":
    """Return the split to read, by its name, and a note if the source has no such split."""
    if only in given:
        return {only: given[only]}, []
    if len(given) > 1:
        raise UserError(
            f"{key}: there is no split {only}, only {', '.join(given)}; choose another with split="
        )
    return {only: next(iter(given.values()))}, [f"{only}: all documents of the source"]


def _no_documents() -> "Dataset":
    from datasets import Dataset

    return Dataset.from_dict({"document": [], "text": []}, features=_features())


def _stdlib_documents(data: StdlibData, only: str | None) -> Documents:
    from datasets import Dataset

    sources, notes = stdlib_splits(data, stdlib_root())
    splits: dict[str, Dataset | StreamedTexts] = {}
    for name, found in sources.items():
        used = found[: data.max_documents] if only in (None, name) else []
        splits[name] = Dataset.from_dict(
            {"document": [d.document for d in used], "text": [d.text for d in used]},
            features=_features(),
        )
    return Documents(splits, notes, {})


def _file_splits(
    data: FileData, scratch: Path, only: str | None, skipped: dict[str, None]
) -> "dict[str, Dataset | StreamedTexts]":
    splits: dict[str, Dataset | StreamedTexts] = {}
    files = matching_files(data).files
    for name in [only] if only in files else files:
        documents = partial(read_documents, files[name], data, skipped)
        splits[name] = _written_to(scratch / name, documents)
    return splits


def _written_to(folder: Path, documents: Callable[[], Iterator[dict[str, str]]]) -> "Dataset":
    """Write documents to Arrow files, so that they can be read again in any order."""
    # load_dataset("text") and ("json") would turn CRLF into LF, and text that looks like a date
    # into a timestamp.
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    try:
        with _no_progress_bars():
            return Dataset.from_generator(
                documents,
                features=_features(),
                cache_dir=str(folder),
                writer_batch_size=_ROWS,
                # the folder is new: what the documents come from need not be hashed
                fingerprint=folder.name,
            )
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None  # the cause is ours and names the file


def _with_missing_splits(
    given: "dict[str, Dataset | StreamedTexts]", data: FileData | HubData, scratch: Path
) -> "tuple[dict[str, Dataset | StreamedTexts], list[str]]":
    """Take splits that are missing from train, if there is one; return them, and a note."""
    fractions = {"validation": data.validation_fraction, "test": data.test_fraction}
    missing = {name: part for name, part in fractions.items() if name not in given and part > 0}
    if not missing or "train" not in given:
        return given, []
    train = given["train"]
    if isinstance(train, StreamedTexts):
        train = _written_to(scratch / "train", train.rows)
    # The hash is of the content, so copies of a document go to the same split.
    keys = np.fromiter(
        (stable_key(text) for rows in row_batches(train) for text in rows["text"]),
        np.uint64,
        len(train),
    )
    if len(np.unique(keys)) <= len(missing):
        return given | _by_position(train, missing, scratch), [_describe_positions(keys, missing)]
    split = assign(keys, missing.get("validation", 0.0), missing.get("test", 0.0))
    taken = {
        name: train.select(np.flatnonzero(split == SPLITS.index(name)))
        for name in ("train", *missing)
    }
    return given | taken, []


def _by_position(
    train: "Dataset", missing: dict[str, float], scratch: Path
) -> "dict[str, Dataset | StreamedTexts]":
    """Split each document by position."""

    def rows(name: str) -> Iterator[dict[str, str]]:
        for batch in row_batches(train):
            for document, text in zip(batch["document"], batch["text"], strict=True):
                yield {"document": f"{document}:{name}", "text": by_position(text, missing)[name]}

    return {
        name: _written_to(scratch / f"{name}-positions", partial(rows, name))
        for name in ("train", *missing)
    }


def _describe_positions(keys: NDArray[np.uint64], missing: dict[str, float]) -> str:
    parts = " and ".join(f"{100 * fraction:g}% {name}" for name, fraction in missing.items())
    what = "one document" if len(np.unique(keys)) == 1 else "few documents, each"
    return f"{what} split by position: train is its beginning, then come {parts}"


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
