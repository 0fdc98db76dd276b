"""A corpus as tokens: written once, then opened as memory maps.

A split is one stream of tokens, in which every document begins with the tokenizer's `bos_id`.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_jax import stopping
from rope_jax.config.data import DataConfig
from rope_jax.data.cache import cache_folder
from rope_jax.data.corpora import load_documents, row_batches
from rope_jax.data.manifest import Damaged, NewFolder, creating_folder, read_manifest
from rope_jax.data.splits import SPLITS
from rope_jax.data.tokenizer import ByteTokenizer
from rope_jax.data.tokens import FileState, TokenSplit
from rope_jax.errors import UserError, printable

_TOKEN = np.dtype("<u2")
_OFFSET = np.dtype("<i8")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Three splits and their fingerprint."""

    train: TokenSplit
    validation: TokenSplit
    test: TokenSplit
    fingerprint: str
    """SHA-256 of the tokenizer's name and each split's tokens: the same for the same data."""
    report: tuple[str, ...]
    """Lines to print before the work starts."""
    bytes_per_token: float
    """Bytes of UTF-8 per token without document starts, to convert nats into bits per byte."""


def open_corpus(
    data: DataConfig, tokenizer: ByteTokenizer, warn: Callable[[str], Any] = print
) -> Corpus:
    """Open the token files of a corpus; write them first if they are absent or damaged.

    warn: called with one line if they are damaged.

    Raises UserError for a bad source (see `load_documents`), or a cache that cannot be read or
    written.
    """
    folder = cache_folder(data, tokenizer.name)
    stopping.check()
    try:
        corpus = _read_corpus(folder, tokenizer)
    except Damaged as damage:
        warn(printable(f"{folder}: {damage}; the tokens are written again"))
        corpus = None
    if corpus is not None:
        return corpus
    with _writing_to(folder.parent), creating_folder(folder) as new:
        _write_corpus(data, tokenizer, new)
    try:
        corpus = _read_corpus(folder, tokenizer)
        if corpus is not None:
            return corpus
        why = "it is gone"
    except Damaged as damage:
        why = str(damage)
    raise UserError(
        f"data.cache_dir: {folder} was written just now, and {why}; name a folder that nothing "
        "else changes"
    )


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    """Turn an OSError in the block into a UserError that names data.cache_dir."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"data.cache_dir: cannot write tokens to {folder} ({error.strerror or error}); "
            "name a writable folder"
        ) from error


def _write_corpus(data: DataConfig, tokenizer: ByteTokenizer, new: NewFolder) -> None:
    """Write the files of every split, and the fingerprint and the report into the manifest."""
    digest = hashlib.sha256(tokenizer.name.encode())
    report: list[str] = []
    with TemporaryDirectory(dir=new.path) as scratch:
        documents = load_documents(data, Path(scratch))
        for name in SPLITS:
            digest.update(name.encode())
            starts, ids = array("q", [0]), list[str]()
            with new.create(f"{name}.tokens") as file:
                for rows in row_batches(documents.splits[name]):
                    stopping.check()
                    ids += rows["document"]
                    for document, text in zip(rows["document"], rows["text"], strict=True):
                        block = _tokens_of(text, document, tokenizer).tobytes()
                        file.write(block)
                        digest.update(block)
                        starts.append(starts[-1] + len(block) // _TOKEN.itemsize)
            with new.create(f"{name}.starts") as file:
                file.write(np.asarray(starts, _OFFSET).tobytes())
            with new.create(f"{name}.ids.json") as file:
                file.write(json.dumps(ids).encode())
            plural = "" if len(ids) == 1 else "s"
            report.append(f"{name}: {len(ids):,} document{plural}, {starts[-1]:,} tokens")
    new.content["fingerprint"] = digest.hexdigest()
    new.content["report"] = report + documents.notes


def _tokens_of(text: str, document: str, tokenizer: ByteTokenizer) -> NDArray[np.uint16]:
    """Return the tokens of a document, its start token first."""
    tokens = np.concatenate([[tokenizer.bos_id], tokenizer.encode(text)])
    if tokens.min() < 0 or tokens.max() >= tokenizer.vocab_size:
        raise UserError(
            f"data: the tokenizer gives {document} tokens from {tokens.min()} to {tokens.max()}, "
            f"outside its vocabulary of {tokenizer.vocab_size}"
        )
    return tokens.astype(_TOKEN)


def _read_corpus(folder: Path, tokenizer: ByteTokenizer) -> Corpus | None:
    """Return the corpus in a folder, None if the folder is absent.

    Raises Damaged, or UserError if something in it cannot be read.
    """
    try:
        content = read_manifest(folder)
        if content is None:
            return None
        return Corpus(
            **{name: _open_split(folder, name, tokenizer) for name in SPLITS},
            fingerprint=content["fingerprint"],
            report=tuple(content["report"]),
            bytes_per_token=tokenizer.bytes_per_token,
        )
    except OSError as error:
        # The path comes last, because a message is cut where it is too long.
        raise UserError(
            "data.cache_dir: name a readable folder; tokens cannot be read "
            f"({error.strerror or error}) from {error.filename or folder}"
        ) from error
    except (ValueError, LookupError, TypeError):  # somebody wrote a manifest that fits
        raise Damaged("the files are not those of a corpus") from None


def _open_split(folder: Path, name: str, tokenizer: ByteTokenizer) -> TokenSplit:
    """Map the files of a split. Raises Damaged if they do not describe documents."""
    path = folder / f"{name}.tokens"
    opened = FileState.of(path)
    # An empty file cannot be mapped.
    tokens = np.memmap(path, _TOKEN, "r") if opened.size else np.zeros(0, _TOKEN)
    starts = np.fromfile(folder / f"{name}.starts", _OFFSET)
    ids = json.loads((folder / f"{name}.ids.json").read_text("utf-8"))
    if len(starts) != len(ids) + 1 or starts[0] != 0 or starts[-1] != len(tokens):
        raise Damaged(f"{name}.starts does not fit the other files")
    if (np.diff(starts) < 1).any() or (tokens[starts[:-1]] != tokenizer.bos_id).any():
        raise Damaged(f"{name}.starts does not hold where the documents begin")
    if tokens.size and tokens.max() >= tokenizer.vocab_size:
        raise Damaged(f"{name}.tokens holds tokens outside the vocabulary")
    return TokenSplit(tokens, starts, ids, path, opened, tokenizer.vocab_size)
