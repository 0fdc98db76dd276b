"""A corpus as tokens: written once, then opened as memory maps.

A split is one stream of tokens, in which every document begins with the tokenizer's `bos_id`.
"""

import hashlib
import json
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_jax.config.data import DataConfig
from rope_jax.data.cache import cache_folder
from rope_jax.data.corpora import load_documents, row_batches
from rope_jax.data.manifest import creating_folder, read_manifest
from rope_jax.data.splits import SPLITS
from rope_jax.data.tokenizer import ByteTokenizer
from rope_jax.errors import UserError

_TOKEN = np.dtype("<u2")
_OFFSET = np.dtype("<i8")


@dataclass(frozen=True, eq=False)
class TokenSplit:
    """One split. Shapes: D documents, N tokens in all of them, document starts included."""

    tokens: NDArray[np.uint16]
    """[N], a read-only memory map."""
    starts: NDArray[np.int64]
    """[D + 1]: where the tokens of each document begin, and N."""
    ids: list[str]
    """[D]: where each document was found: a path, path:line, path:row or split:row."""

    def __len__(self) -> int:
        """Return D, the number of documents."""
        return len(self.ids)

    def document(self, index: int) -> NDArray[np.uint16]:
        """Return the tokens of document `index`, its start token first."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens in each document, its start token included: int64 [D]."""
        return np.diff(self.starts)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Three splits, and what identifies them."""

    train: TokenSplit
    validation: TokenSplit
    test: TokenSplit
    fingerprint: str
    """SHA-256 of the tokenizer's name and each split's tokens: the same for the same data."""
    report: tuple[str, ...]
    """What to print before the work, one line each."""
    bytes_per_token: float
    """Bytes of UTF-8 per token without document starts, to convert nats into bits per byte."""


def open_corpus(data: DataConfig, tokenizer: ByteTokenizer) -> Corpus:
    """Open the token files of a corpus; write them first if they are absent or damaged.

    Raises UserError for a bad source (see `load_documents`) or a cache that cannot be written.
    """
    folder = cache_folder(data, tokenizer.name)
    manifest = read_manifest(folder)
    if manifest is None:
        with _naming_cache_dir(folder.parent), creating_folder(folder) as (new, manifest):
            manifest |= _write_corpus(data, tokenizer, new)
    return Corpus(
        **{name: _open_split(folder, name) for name in SPLITS},
        fingerprint=manifest["fingerprint"],
        report=tuple(manifest["report"]),
        bytes_per_token=tokenizer.bytes_per_token,
    )


@contextmanager
def _naming_cache_dir(folder: Path) -> Iterator[None]:
    """Turn an OSError of the block into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"data.cache_dir: cannot write tokens to {folder} ({error.strerror or error}); "
            "name a writable folder"
        ) from error


def _write_corpus(data: DataConfig, tokenizer: ByteTokenizer, folder: Path) -> dict[str, Any]:
    """Write the files of every split; return the fingerprint and the report for the manifest."""
    digest = hashlib.sha256(tokenizer.name.encode())
    bos = np.array([tokenizer.bos_id], _TOKEN)
    report: list[str] = []
    with TemporaryDirectory(dir=folder) as scratch:
        documents = load_documents(data, Path(scratch))
        for name in SPLITS:
            digest.update(name.encode())
            starts, ids = array("q", [0]), list[str]()
            with (folder / f"{name}.tokens").open("wb") as file:
                for rows in row_batches(documents.splits[name]):
                    ids += rows["document"]
                    for text in rows["text"]:
                        tokens = np.concatenate([bos, tokenizer.encode(text)])
                        block = tokens.astype(_TOKEN).tobytes()
                        file.write(block)
                        digest.update(block)
                        starts.append(starts[-1] + len(tokens))
            np.asarray(starts, _OFFSET).tofile(folder / f"{name}.starts")
            (folder / f"{name}.ids.json").write_text(json.dumps(ids), "utf-8")
            plural = "" if len(ids) == 1 else "s"
            report.append(f"{name}: {len(ids):,} document{plural}, {starts[-1]:,} tokens")
    return {"fingerprint": digest.hexdigest(), "report": report + documents.notes}


def _open_split(folder: Path, name: str) -> TokenSplit:
    path = folder / f"{name}.tokens"
    # An empty file cannot be mapped.
    tokens = np.memmap(path, _TOKEN, "r") if path.stat().st_size else np.zeros(0, _TOKEN)
    return TokenSplit(
        tokens=tokens,
        starts=np.fromfile(folder / f"{name}.starts", _OFFSET),
        ids=json.loads((folder / f"{name}.ids.json").read_text("utf-8")),
    )
