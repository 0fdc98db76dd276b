"""Text to tokens and back: bytes, any tokenizer.json, or a byte-level BPE trained on the corpus."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rope_jax.config.data import DataConfig
from rope_jax.config.tokenizer import (
    START_TOKEN,
    BPETokenizerConfig,
    FileTokenizerConfig,
    TokenizerConfig,
)
from rope_jax.data.cache import cache_folder, make_once
from rope_jax.data.corpora import document_batches, load_documents
from rope_jax.data.tokenizers.base import Tokenizer, describe_tokenizer
from rope_jax.data.tokenizers.byte_level import BPE_RECIPE, ByteTokenizer, train_bpe
from rope_jax.data.tokenizers.from_json import JsonTokenizer
from rope_jax.errors import UserError
from rope_jax.rope.files import read_limited

__all__ = [
    "ByteTokenizer",
    "JsonTokenizer",
    "Tokenizer",
    "describe_tokenizer",
    "open_tokenizer",
    "read_content",
    "read_tokenizer",
]

_FILE = "tokenizer.json"
_MOST_BYTES = 2**28  # of a tokenizer.json; that of 262,144 tokens takes 33 MB


def open_tokenizer(
    config: TokenizerConfig,
    data: DataConfig,
    copy: Path | None = None,
    warn: Callable[[str], Any] = print,
    known: int | None = None,
) -> Tokenizer:
    """Return the tokenizer that a run's config describes.

    data: the corpus whose train split `bpe` is trained on, once: the result is cached.
    copy: the run's own tokenizer.json, which is preferred if it exists.
    warn: called with one line if the cached tokenizer is damaged.
    known: size of the model's vocabulary, see `JsonTokenizer`; None: that of the tokenizer.

    UserError: a file cannot be read or does not fit, or as `load_documents`.
    """
    if not isinstance(config, FileTokenizerConfig | BPETokenizerConfig):
        return ByteTokenizer()
    if copy is not None and copy.exists():
        return read_tokenizer(copy, config.start, known)
    if isinstance(config, FileTokenizerConfig):
        return read_tokenizer(Path(os.path.expanduser(config.path)), config.start, known)
    folder = cache_folder(data, f"bpe {BPE_RECIPE} of {config.vocab_size} tokens")

    def train(new: Path) -> None:
        with TemporaryDirectory(dir=new) as scratch:
            batches = document_batches(load_documents(data, Path(scratch)).splits["train"])
            texts = ([text for _, text in batch] for batch in batches)
            content = train_bpe(texts, config.vocab_size)
        (new / _FILE).write_text(content, "utf-8")

    make_once(folder, "the tokenizer", train, warn)
    return read_tokenizer(folder / _FILE, START_TOKEN)


def read_tokenizer(path: Path, bos: str | None, known: int | None = None) -> JsonTokenizer:
    """Return the tokenizer of a tokenizer.json; see `JsonTokenizer`."""
    return JsonTokenizer(read_content(path), bos, str(path), known)


def read_content(path: Path) -> str:
    try:
        return read_limited(path, _MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"tokenizer.path: {path} is not UTF-8 (byte {error.start}), as a tokenizer.json is"
        ) from None
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError)
        what = ": no such file" if is_absent else f" cannot be read ({error.strerror})"
        raise UserError(f"tokenizer.path: {path}{what}; name a tokenizer.json") from None
