"""A corpus as tokens: written once, then opened as memory maps.

A split is one stream of tokens, in which every document begins with the tokenizer's `bos_id`, if it
has one.
"""

import hashlib
import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_jax import stopping
from rope_jax.config.data import DataConfig
from rope_jax.data.cache import cache_folder, writing_to
from rope_jax.data.corpora import load_documents, row_batches
from rope_jax.data.manifest import Damaged, NewFolder, creating_folder, read_manifest
from rope_jax.data.splits import SPLITS
from rope_jax.data.tokenizers import Tokenizer
from rope_jax.data.tokenizers.base import Tokens, token_dtype
from rope_jax.data.tokens import FileState, TokenSplit
from rope_jax.errors import UserError, printable

_OFFSET = np.dtype("<i8")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Three splits and their fingerprint."""

    train: TokenSplit
    validation: TokenSplit
    test: TokenSplit
    fingerprint: str
    """SHA-256 of the tokenizer's name and each split's documents: the same for the same data."""
    report: tuple[str, ...]
    """Lines to print before the work starts: one for each split, and `notes`."""
    tokenizer: Tokenizer
    """What the tokens stand for."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on how the source was read, such as records that were skipped."""
        return self.report[len(SPLITS) :]


def open_corpus(
    data: DataConfig,
    tokenizer: Tokenizer,
    warn: Callable[[str], Any] = print,
    only: str | None = None,
) -> Corpus:
    """Open the token files of a corpus; write them first if they are absent or damaged.

    only: the split to read, of texts on which nothing is trained; see `load_documents`. The other
    two are empty. None: all three.
    warn: called with one line if they are damaged.

    Raises UserError for a bad source (see `load_documents`), or a cache that cannot be read or
    written.
    """
    folder = cache_folder(data, tokenizer.name, only)
    stopping.check()
    try:
        corpus = _read_corpus(folder, tokenizer)
    except Damaged as damage:
        warn(printable(f"{folder}: {damage}; the tokens are written again"))
        corpus = None
    if corpus is not None:
        return corpus
    with writing_to(folder.parent, "tokens"), creating_folder(folder) as new:
        _write_corpus(data, tokenizer, only, new)
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


def _write_corpus(data: DataConfig, tokenizer: Tokenizer, only: str | None, new: NewFolder) -> None:
    """Write the files of every split; the fingerprint and so on go into the manifest."""
    digest = hashlib.sha256(tokenizer.name.encode())
    dtype, starts_with = token_dtype(tokenizer.vocab_size), int(tokenizer.bos_id is not None)
    report: list[str] = []
    bytes_per_token: dict[str, float | None] = {}
    with TemporaryDirectory(dir=new.path) as scratch:
        documents = load_documents(data, Path(scratch), only)
        for name in SPLITS:
            digest.update(name.encode())
            starts, ids, text_bytes = array("q", [0]), list[str](), 0
            with new.create(f"{name}.tokens") as file:
                for rows in row_batches(documents.splits[name]):
                    stopping.check()
                    ids += rows["document"]
                    text_bytes += sum(len(text.encode()) for text in rows["text"])
                    found = tokenizer.encode_batch(rows["text"])
                    for document, tokens in zip(rows["document"], found, strict=True):
                        block = _with_start(tokens, document, tokenizer).astype(dtype).tobytes()
                        file.write(block)
                        digest.update(block)
                        starts.append(starts[-1] + len(block) // dtype.itemsize)
            with new.create(f"{name}.starts") as file:
                file.write(np.asarray(starts, _OFFSET).tobytes())
            with new.create(f"{name}.ids.json") as file:
                file.write(json.dumps(ids).encode())
            if tokenizer.bos_id is None:  # then the tokens do not show where documents begin
                digest.update(np.asarray(starts, _OFFSET).tobytes())
            without_starts = starts[-1] - starts_with * len(ids)
            bytes_per_token[name] = text_bytes / without_starts if without_starts else None
            plural = "" if len(ids) == 1 else "s"
            report.append(f"{name}: {len(ids):,} document{plural}, {starts[-1]:,} tokens")
    new.content["fingerprint"] = digest.hexdigest()
    new.content["report"] = report + documents.notes
    new.content["bytes_per_token"] = bytes_per_token


def _with_start(tokens: Tokens, document: str, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return a document's tokens, its start token first. UserError: one is not in the vocabulary.

    Checked before they are narrowed to the width of the vocabulary, in which they could wrap.
    """
    start = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    joined = np.concatenate([np.array(start, np.int64), tokens.astype(np.int64)])
    if joined.size and (joined.min() < 0 or joined.max() >= tokenizer.vocab_size):
        raise UserError(
            f"data: the tokenizer gives {document} tokens from {joined.min()} to {joined.max()}, "
            f"outside its vocabulary of {tokenizer.vocab_size}"
        )
    return joined


def _read_corpus(folder: Path, tokenizer: Tokenizer) -> Corpus | None:
    """Return the corpus in a folder, None if the folder is absent.

    Raises Damaged, or UserError if something in it cannot be read.
    """
    try:
        content = read_manifest(folder)
        if content is None:
            return None
        return Corpus(
            **{
                name: _open_split(folder, name, tokenizer, content["bytes_per_token"][name])
                for name in SPLITS
            },
            fingerprint=content["fingerprint"],
            report=tuple(content["report"]),
            tokenizer=tokenizer,
        )
    except OSError as error:
        # The path comes last, because a message is cut where it is too long.
        raise UserError(
            "data.cache_dir: name a readable folder; tokens cannot be read "
            f"({error.strerror or error}) from {error.filename or folder}"
        ) from error
    except (ValueError, LookupError, TypeError):  # somebody wrote a manifest that fits
        raise Damaged("the files are not those of a corpus") from None


def _open_split(
    folder: Path, name: str, tokenizer: Tokenizer, bytes_per_token: float | None
) -> TokenSplit:
    """Map the files of a split. Raises Damaged if they do not describe documents."""
    path = folder / f"{name}.tokens"
    opened = FileState.of(path)
    # An empty file cannot be mapped.
    dtype, bos_id = token_dtype(tokenizer.vocab_size), tokenizer.bos_id
    tokens = np.memmap(path, dtype, "r") if opened.size else np.zeros(0, dtype)
    starts = np.fromfile(folder / f"{name}.starts", _OFFSET)
    ids = json.loads((folder / f"{name}.ids.json").read_text("utf-8"))
    if len(starts) != len(ids) + 1 or starts[0] != 0 or starts[-1] != len(tokens):
        raise Damaged(f"{name}.starts does not fit the other files")
    shortest = 0 if bos_id is None else 1
    if (np.diff(starts) < shortest).any() or (
        bos_id is not None and (tokens[starts[:-1]] != bos_id).any()
    ):
        raise Damaged(f"{name}.starts does not hold where the documents begin")
    if tokens.size and tokens.max() >= tokenizer.vocab_size:
        raise Damaged(f"{name}.tokens holds tokens outside the vocabulary")
    return TokenSplit(
        tokens, starts, ids, path, opened, tokenizer.vocab_size, bos_id, bytes_per_token
    )
