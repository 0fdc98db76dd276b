"""Text to tokens and back: bytes, any tokenizer.json, or a byte-level BPE trained on the corpus.

None of them adds a document start: the config decides that.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library
from tokenizers.trainers import BpeTrainer

from rope_jax.config.data import DataConfig
from rope_jax.config.tokenizer import (
    START_TOKEN,
    BPETokenizerConfig,
    FileTokenizerConfig,
    Start,
    TokenizerConfig,
    start_tokens,
)
from rope_jax.data.cache import cache_folder, make_once
from rope_jax.data.chat import ChatTemplate, find_template
from rope_jax.data.corpora import document_batches, load_documents
from rope_jax.errors import UserError, errors_in, file_errors

BPE_RECIPE = 1
"""Increment when the same texts would no longer give the same tokenizer."""
_FILE = "tokenizer.json"
_START = AddedToken(START_TOKEN, special=True, normalized=False)
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE = re.compile("<0x..>")

Tokens = NDArray[np.unsignedinteger[Any]]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the type of tokens in memory and on disk: 16 bits up to 65,536 tokens, else 32."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


class ByteTokenizer:
    """256 tokens for the bytes of UTF-8, and one that starts a document."""

    name = "bytes"
    vocab_size = 257
    bos_ids: tuple[int, ...] = (256,)
    token_bytes = np.append(np.ones(256, np.int64), 0)
    chat: ChatTemplate | None = None

    def encode(self, text: str) -> Tokens:
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.uint16)

    def encode_batch(self, texts: Sequence[str], control: bool = False) -> list[Tokens]:
        if not control:
            return [self.encode(text) for text in texts]
        start = np.array(self.bos_ids, np.uint16)
        parts = ([x for part in text.split(START_TOKEN) for x in (start, self.encode(part))]
                 for text in texts)  # fmt: skip
        return [np.concatenate(of_text[1:]) for of_text in parts]

    def token_id(self, text: str, key: str) -> int:
        if text != START_TOKEN:
            raise UserError(f"{key}: bytes have no token {text!r}, only {START_TOKEN!r}")
        return 256

    def size_for(self, data: DataConfig) -> int:
        return self.vocab_size

    def decode(self, tokens: NDArray[np.integer[Any]], *, skip_special_tokens: bool = False) -> str:
        kept = tokens[~np.isin(tokens, self.bos_ids)]
        return kept.astype(np.uint8).tobytes().decode("utf-8", "replace")

    def json(self) -> str:
        """Return an equivalent tokenizer.json: byte-level BPE without merges, token b for byte b.

        Its post-processor adds the document start, which these models were trained with.
        """
        # Visible characters of Latin-1 stand for themselves; U+0100 and so on for the other bytes.
        characters = sorted(pre_tokenizers.ByteLevel.alphabet())
        visible = {character: ord(character) for character in characters if character < "\u0100"}
        others = sorted(set(range(256)) - set(visible.values()))
        vocab = visible | dict(zip(characters[len(visible) :], others, strict=True))
        library = _byte_level(models.BPE(vocab=vocab, merges=[]), use_regex=False)
        library.add_special_tokens([_START])
        _add_start(library)
        return library.to_str(pretty=True)


class JsonTokenizer:
    """The tokenizer of a tokenizer.json, without its truncation, padding and special tokens.

    name: equal names give equal tokens for every text.
    vocab_size: every token is below it.
    bos_ids: the tokens before each document.
    adds_start: whether the file's post-processor puts any there.
    chat: the template that makes a conversation a text, if there is one.
    """

    chat: ChatTemplate | None = None

    def __init__(
        self, content: str, bos: Start, where: str, known: int | None = None, control: bool = False
    ) -> None:
        """Read the content of a tokenizer.json. bos: what is before each document.

        where: the file, as errors name it.
        known: size of the model's vocabulary. Only texts with added tokens beyond it are refused.
        control: whether `vocab_size` is that of all control tokens, too.

        UserError: the content is damaged, `bos` is not a token, or the tokenizer's own
        post-processor would add anything else to a document than `bos` before it.
        """
        self._library = _library_of(content, where)
        self._library.no_truncation()
        self._library.no_padding()
        self._content, self._where = content, where
        self.bos_ids = tuple(self.token_id(text, "tokenizer.bos") for text in start_tokens(bos))
        self.vocab_size = self._count_tokens(known, control)
        self._known = known or self.vocab_size
        self._check_post_processor(bos)
        digest = hashlib.sha256(content.encode()).hexdigest()
        self.name = f"tokenizer.json {digest[:32]} bos {bos!r}"
        if (size := self._count_tokens(known)) < self._count_tokens(None):
            self.name += f" below {size}"  # texts with the other tokens are refused

    def encode(self, text: str) -> Tokens:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str], control: bool = False) -> list[Tokens]:
        """Return each text's tokens, without document starts.

        control: whether text that looks like a special token, such as "<s>" in a web page, is one.

        UserError: the tokenizer has no token for something in a text.
        """
        self._library.encode_special_tokens = not control  # like text, that is
        limit = self._known if control else self.vocab_size
        # it fails at a word outside the vocabulary, if there is no token for unknown ones
        with errors_in(f"tokenizer.path: {self._where} cannot tokenize: ", UserError, Exception):
            encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._as_tokens(encoding.ids, limit) for encoding in encodings]

    def decode(self, tokens: NDArray[np.integer[Any]], *, skip_special_tokens: bool = False) -> str:
        """Return the text of tokens without document starts; a truncated character becomes �."""
        kept = tokens[~np.isin(tokens, self.bos_ids)]
        return self._library.decode(kept.tolist(), skip_special_tokens=skip_special_tokens)

    @functools.cached_property
    def token_bytes(self) -> NDArray[np.int64]:
        """Bytes of UTF-8 of each token: int64 [V]; 0 for special tokens, which no text has.

        Byte-level tokens have a character for each byte. Elsewhere "▁" is a space, and "<0x0A>" a
        byte if the tokenizer falls back to bytes. So the tokens of a text add up to its bytes,
        except for a space that the tokenizer puts before it and for what its normalizer changes.
        """
        content = json.loads(self._library.to_str())
        parts = ("normalizer", "pre_tokenizer", "decoder")
        is_byte_level = '"ByteLevel"' in json.dumps([content.get(key) for key in parts])
        falls_back = content["model"].get("byte_fallback", False)
        prefix = content["model"].get("continuing_subword_prefix") or ""
        counts = {}
        for spelled, token in self._library.get_vocab(with_added_tokens=False).items():
            if is_byte_level:
                counts[token] = len(spelled)
            elif falls_back and _BYTE.fullmatch(spelled):
                counts[token] = 1
            else:
                counts[token] = len(spelled.removeprefix(prefix).replace(_SPACE, " ").encode())
        for token, added in self._library.get_added_tokens_decoder().items():
            text = added.content if is_byte_level else added.content.replace(_SPACE, " ")
            counts[token] = 0 if added.special else len(text.encode())
        return np.array([counts.get(token, 0) for token in range(self._known)], np.int64)

    def json(self) -> str:
        return self._content

    def size_for(self, data: DataConfig) -> int:
        """Return a number above every token of documents, which may hold control tokens."""
        return self._known if data.has_special_tokens else self.vocab_size

    def _as_tokens(self, ids: list[int], limit: int) -> Tokens:
        if (token := max(ids, default=0)) >= limit:  # would wrap in 16 bits
            raise UserError(
                f"tokenizer.path: {self._where} gives token {token} "
                f"({self._library.id_to_token(token)!r}) for a text, outside the vocabulary of "
                f"{limit}"
            )
        return np.array(ids, token_dtype(limit))

    def _count_tokens(self, known: int | None, control: bool = False) -> int:
        """Return a number above every token that a document can hold.

        control: whether it can hold special tokens besides its start. Others may lie beyond the
            model's vocabulary, as one of Gemma 3's does.
        """
        tokens = [*self._library.get_vocab(with_added_tokens=False).values(), *self.bos_ids]
        for token, added in self._library.get_added_tokens_decoder().items():
            if (control or not added.special) and (known is None or token < known):
                tokens.append(token)
        if not tokens:
            raise UserError(f"tokenizer.path: {self._where} has no tokens")
        return max(tokens) + 1

    def token_id(self, text: str, key: str) -> int:
        """Return the number of a token. UserError, naming the key: there is no such token."""
        token = self._library.token_to_id(text)
        if token is None:
            added = self._library.get_added_tokens_decoder().values()
            special = ", ".join([repr(token.content) for token in added if token.special][:5])
            raise UserError(
                f"{key}: {self._where} has no token {text!r}; give null, or one of its special "
                f"tokens ({special or 'none'}, …)"
            )
        return token

    def _check_post_processor(self, bos: Start) -> None:
        """UserError if it adds more than `bos`: models trained so would miss these tokens."""
        before, after = _added_tokens(self._library, self._where)
        start, self.adds_start = list(start_tokens(bos)), bool(before)
        if not after and before in ([], start):
            return
        shown = json.dumps([before, after], ensure_ascii=False)
        raise UserError(
            f"tokenizer.bos: is {json.dumps(start, ensure_ascii=False)}, but the post-processor of "
            f"{self._where} puts {shown} before and after a text; give the former as tokenizer.bos "
            "and the latter as data.eos, and remove what is after a text from the file"
        )


Tokenizer = ByteTokenizer | JsonTokenizer


def open_tokenizer(
    config: TokenizerConfig, data: DataConfig, copy: Path | None = None, known: int | None = None
) -> Tokenizer:
    """Return the tokenizer that a run's config describes.

    data: the corpus whose train split `bpe` is trained on, once: the result is cached.
    copy: the run's own tokenizer.json, which is preferred if it exists.
    known: size of the model's vocabulary, see `JsonTokenizer`; None: that of the tokenizer.

    UserError: a file cannot be read or does not fit, or as `load_documents`.
    """
    if not isinstance(config, FileTokenizerConfig | BPETokenizerConfig):
        return ByteTokenizer()
    control = data.has_special_tokens
    if copy is not None and copy.exists():
        return read_tokenizer(copy, config.start, known, control)
    if isinstance(config, FileTokenizerConfig):
        path = Path(os.path.expanduser(config.path))
        return read_tokenizer(path, config.start, known, control)
    folder = cache_folder(data, f"bpe {BPE_RECIPE} of {config.vocab_size} tokens")

    def train(new: Path) -> None:
        with TemporaryDirectory(dir=new) as scratch:
            batches = document_batches(load_documents(data, Path(scratch)).splits["train"])
            texts = ([text for _, text in batch] for batch in batches)
            (new / _FILE).write_text(train_bpe(texts, config.vocab_size), "utf-8")

    make_once(folder, train)
    return read_tokenizer(folder / _FILE, START_TOKEN)


def read_tokenizer(
    path: Path, bos: Start, known: int | None = None, control: bool = False
) -> JsonTokenizer:
    """Return the tokenizer of a tokenizer.json; see `JsonTokenizer`."""
    tokenizer = JsonTokenizer(read_content(path), bos, str(path), known, control)
    tokenizer.chat = find_template(path.parent)
    return tokenizer


def read_content(path: Path) -> str:
    try:
        with errors_in("tokenizer.path: ", UserError, UserError), file_errors(path):
            return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"tokenizer.path: {path} is not UTF-8 (byte {error.start})") from None


def describe_tokenizer(config: TokenizerConfig, tokenizer: Tokenizer) -> str:
    """Return one line on a tokenizer, and on what precedes a document."""
    ids = ", ".join(map(str, tokenizer.bos_ids))
    tokens = "token" if len(tokenizer.bos_ids) == 1 else "tokens"
    start = f"{' '.join(start_tokens(config.start))} ({tokens} {ids})" if ids else "none"
    return f"{config.type}, {tokenizer.vocab_size:,} tokens; document start: {start}"


def added_start(content: str, where: str) -> Start:
    """Return what a tokenizer.json's post-processor puts before a text.

    where: the file, as errors name it. UserError: the content is damaged.
    """
    before, _ = _added_tokens(_library_of(content, where), where)
    return tuple(before) if len(before) > 1 else before[0] if before else None


def train_bpe(texts: Iterable[Sequence[str]], vocab_size: int) -> str:
    """Return the content of a tokenizer.json with byte-level BPE: Sennrich et al., 1508.07909.

    Texts are cut into words and spaces as by GPT-2 (Radford et al., 2019, section 2.2), and a
    merge never crosses such a cut. Every byte is a token, and nothing is normalised, so that any
    text is recovered exactly. The same texts give the same tokenizer.

    texts: batches of texts. vocab_size: tokens, the 256 bytes and the document start included.

    UserError: there is not enough text for so many tokens.
    """
    library = _byte_level(models.BPE(), use_regex=True)
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[_START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    library.train_from_iterator(texts, trainer)
    if (size := library.get_vocab_size(with_added_tokens=True)) < vocab_size:
        raise UserError(
            f"tokenizer.vocab_size: the train split is enough text for {size:,} tokens, not "
            f"{vocab_size:,}; lower it, or give more text"
        )
    _add_start(library)
    return library.to_str()


def _byte_level(model: models.Model, use_regex: bool) -> Library:
    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    library.decoder = decoders.ByteLevel()
    return library


def _add_start(library: Library) -> None:
    """Let the post-processor put the document start before a text."""
    library.post_processor = processors.TemplateProcessing(
        single=f"{START_TOKEN} $A",
        pair=f"{START_TOKEN} $A {START_TOKEN} $B",
        special_tokens=[(START_TOKEN, library.token_to_id(START_TOKEN))],
    )


def _library_of(content: str, where: str) -> Library:
    with errors_in(f"tokenizer.path: {where} is no tokenizer.json: ", UserError, Exception):
        return Library.from_str(content)


def _added_tokens(library: Library, where: str) -> tuple[list[str], list[str]]:
    """Return the tokens that a post-processor puts before and after a text."""
    with errors_in(f"tokenizer.path: {where} cannot tokenize: ", UserError, Exception):
        encoding = library.encode("a", add_special_tokens=True)
    inner = [i for i, added in enumerate(encoding.special_tokens_mask) if not added]
    first, last = (inner[0], inner[-1] + 1) if inner else (len(encoding.ids), len(encoding.ids))
    return encoding.tokens[:first], encoding.tokens[last:]
