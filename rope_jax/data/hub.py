"""Data sets on the Hugging Face hub; code in a data set is never run."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rope_jax.config.data import HubData
from rope_jax.data.files import require_column
from rope_jax.data.splits import SPLITS
from rope_jax.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset


def hub_splits(data: HubData) -> dict[str, "Dataset"]:
    """Return the splits of a data set that are in SPLITS, with columns `document` and `text`.

    Downloads go to Hugging Face's own cache.

    Raises UserError.
    """
    from datasets import Dataset, load_dataset

    # load_dataset would read a bare name as one of its loaders, and an existing path as local data
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", data.id) or Path(data.id).exists():
        raise UserError(
            f"data.id: {data.id!r} is not the id (owner/name) of a data set on the hub; "
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
        _check_texts(rows, name, data)
        texts = rows.select_columns([data.column])
        if data.column != "text":  # `datasets` refuses to rename a column to its own name
            texts = texts.rename_column(data.column, "text")
        splits[name] = texts.add_column("document", [f"{name}:{i}" for i in range(len(texts))])
    return splits


def _check_texts(rows: "Dataset", split: str, data: HubData) -> None:
    """Raise UserError unless every row of a split has text."""
    import pyarrow

    if not len(rows):
        raise UserError(f"data.id: the {split} split of {data.id} has no documents")
    require_column(data.column, rows.column_names, data.id)
    kind = getattr(rows.features[data.column], "dtype", "a list")
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
