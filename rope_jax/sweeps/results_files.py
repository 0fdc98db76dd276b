"""A sweep's results on disk: results.csv, results.jsonl, documents.csv, summary.json."""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rope_jax.evaluation.results import DocumentRow, Row
from rope_jax.runs.files import write_text


def write(
    folder: Path, table: list[Row], documents: list[DocumentRow], about: dict[str, Any]
) -> None:
    """results.csv, results.jsonl, documents.csv and summary.json."""
    write_text(folder / "results.csv", _csv(Row._fields, table))
    lines = [json.dumps(_plain(row._asdict())) + "\n" for row in table]
    write_text(folder / "results.jsonl", "".join(lines))
    write_text(folder / "documents.csv", _csv(DocumentRow._fields, documents))
    write_text(folder / "summary.json", json.dumps(_plain(about), indent=2) + "\n")


def _csv(header: Sequence[str], table: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(table)
    return text.getvalue()


def _plain(value: Any) -> Any:
    """Infinities and nan as null: JSON has neither. The NLL beside them is finite or null too."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
