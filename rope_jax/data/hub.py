"""Data sets of the Hugging Face hub; no code that comes with one is run."""

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
    """Return the splits of a data set that we use, with the columns `document` and `text`.

    Downloads go to Hugging Face's own cache.

    Raises UserError.
    """
    from datasets import Dataset, load_dataset

    # load_dataset takes a bare name for one of its own loaders, and a folder's name for the folder
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
        _check_texts(rows, name, data)
        texts = rows.select_columns([data.column]).rename_column(data.column, "text")
        splits[name] = texts.add_column("document", [f"{name}:{i}" for i in range(len(texts))])
    return splits


def _check_texts(rows: "Dataset", split: str, data: HubData) -> None:
    """Raise UserError unless every row of a split has text."""
    if not len(rows):
        raise UserError(f"data.id: the {split} split of {data.id} has no documents")
    require_column(data.column, rows.column_names, data.id)
    kind = getattr(rows.features[data.column], "dtype", "a list")
    if kind not in ("string", "large_string"):
        raise UserError(f"data.column: {data.column!r} of {data.id} contains {kind}, not text")
    nulls = rows.data.column(data.column).null_count
    if nulls:
        plural = "" if nulls == 1 else "s"
        raise UserError(
            f"data.column: {data.column!r} of {data.id} is null in {nulls} row{plural} of {split}"
        )
