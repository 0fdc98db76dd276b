"""A corpus as tokens: written once, then opened as one memory map.

A split is one stream of tokens, in which every document begins with the tokenizer's `bos_ids`.
Shapes: D documents, N tokens in all of them, document starts included.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_jax import stopping
from rope_jax.config.data import DataConfig
from rope_jax.data.cache import CHANGE, cache_folder, make_once
from rope_jax.data.chat import Messages, Render, render_plainly
from rope_jax.data.corpora import document_batches, load_documents
from rope_jax.data.splits import SPLITS
from rope_jax.data.tokenizers import Tokenizer, token_dtype
from rope_jax.errors import file_errors

_ABOUT, _TOKENS = "corpus.json", "tokens"


@dataclass(frozen=True, eq=False)
class TokenSplit:
    """One split: the tokens of its documents, one after another."""

    tokens: NDArray[np.unsignedinteger[Any]]
    """[N], a read-only memory map."""
    starts: NDArray[np.int64]
    """[D + 1]: where the tokens of each document begin, and N."""
    ids: list[str]
    """[D]: where each document was found: a path, path:line, path:index, path:row or split:row."""
    bos_ids: tuple[int, ...]
    bytes_per_token: float | None
    """Bytes of UTF-8 per token, without document starts and ends; None if there are none."""
    eos_id: int | None = None
    """The token that every document ends with; None: documents have no end token."""

    def __len__(self) -> int:
        return len(self.ids)

    def document(self, index: int) -> NDArray[np.unsignedinteger[Any]]:
        """Return a copy of the tokens of document `index`, its start tokens first."""
        return np.array(self.tokens[self.starts[index] : self.starts[index + 1]])

    def texts(self) -> list[NDArray[np.unsignedinteger[Any]]]:
        """Return the tokens of every document, without its start and end."""
        first, last = len(self.bos_ids), None if self.eos_id is None else -1
        return [self.document(index)[first:last] for index in range(len(self))]

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens in each document, start tokens included: [D]."""
        return np.diff(self.starts)


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
    folder: Path
    """Where the tokens are kept, and what is found out about them."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on how the source was read, such as records that were skipped."""
        return self.report[len(SPLITS) :]


def open_corpus(data: DataConfig, tokenizer: Tokenizer, only: str | None = None) -> Corpus:
    """Open the tokens of a corpus; write them first if they are absent.

    only: as in `load_documents`.

    UserError: a bad source, or a cache that cannot be read or written.
    """
    name, chat = tokenizer.name, tokenizer.chat
    if chat is not None:
        name += f", chats by {chat.settings()}"
    folder = cache_folder(data, name, only)
    stopping.check()
    make_once(folder, lambda new: _write_corpus(data, tokenizer, only, new))
    path, dtype = folder / _TOKENS, token_dtype(tokenizer.size_for(data))
    with file_errors(folder, advice=CHANGE):
        about = json.loads((folder / _ABOUT).read_text("utf-8"))
        # an empty file cannot be mapped
        tokens = np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)
    splits, end = {}, 0
    for name in SPLITS:
        split = about["splits"][name]
        starts = np.cumsum([0, *split["lengths"]], dtype=np.int64)
        begin, end = end, end + int(starts[-1])
        splits[name] = TokenSplit(
            tokens=tokens[begin:end],
            starts=starts,
            ids=split["ids"],
            bos_ids=tokenizer.bos_ids,
            eos_id=about.get("eos_id"),
            bytes_per_token=split["bytes_per_token"],
        )
    return Corpus(
        **splits,
        fingerprint=about["fingerprint"],
        report=tuple(about["report"]),
        tokenizer=tokenizer,
        folder=folder,
    )


def _write_corpus(data: DataConfig, tokenizer: Tokenizer, only: str | None, new: Path) -> None:
    digest = hashlib.sha256(tokenizer.name.encode())
    dtype = token_dtype(tokenizer.size_for(data))
    eos_id = None if data.eos is None else tokenizer.token_id(data.eos, "data.eos")
    start = np.array(tokenizer.bos_ids, dtype)
    end = np.array([] if eos_id is None else [eos_id], dtype)
    render: Render = render_plainly
    if tokenizer.chat is not None:
        render = _refuse if data.split_special_tokens else tokenizer.chat.render
    splits: dict[str, dict[str, Any]] = {}
    report = list[str]()
    with TemporaryDirectory(dir=new) as scratch, (new / _TOKENS).open("xb") as file:
        documents = load_documents(data, Path(scratch), only, render)
        for name in SPLITS:
            digest.update(name.encode())
            ids, lengths, text_bytes = list[str](), list[int](), 0
            for batch in document_batches(documents.splits[name]):
                stopping.check()
                texts = [text for _, text in batch]
                encoded = tokenizer.encode_batch(texts, control=not data.split_special_tokens)
                for (document, text), tokens in zip(batch, encoded, strict=True):
                    if not data.split_special_tokens:  # their authors may have put these there
                        tokens = _without(tokens, start, end)
                    block = np.concatenate([start, tokens.astype(dtype), end])
                    ids.append(document)
                    lengths.append(block.size)
                    text_bytes += len(text.encode())
                    file.write(block.tobytes())
                    digest.update(block.tobytes())
            if not tokenizer.bos_ids:  # then the tokens do not show where documents begin
                digest.update(np.cumsum([0, *lengths], dtype="<i8").tobytes())
            total = sum(lengths)
            of_texts = total - (start.size + end.size) * len(ids)
            per_token = text_bytes / of_texts if of_texts else None
            splits[name] = {"ids": ids, "lengths": lengths, "bytes_per_token": per_token}
            plural = "" if len(ids) == 1 else "s"
            report.append(f"{name}: {len(ids):,} document{plural}, {total:,} tokens")
    report += documents.notes
    if eos_id is not None:
        report.append(f"document end: {data.eos} (token {eos_id})")
    about = {"fingerprint": digest.hexdigest(), "report": report, "splits": splits}
    (new / _ABOUT).write_text(json.dumps(about | {"eos_id": eos_id}), "utf-8")


def _without(tokens: NDArray[Any], start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Return a document's tokens without one start and one end, if it has them."""
    if start.size and np.array_equal(tokens[: start.size], start):
        tokens = tokens[start.size :]
    if end.size and np.array_equal(tokens[-1:], end):
        tokens = tokens[:-1]
    return tokens


def _refuse(_: Messages) -> str:
    raise ValueError(
        "the tokenizer's chat template writes control tokens; give data.split_special_tokens="
        "false, so that they are read as such"
    )
