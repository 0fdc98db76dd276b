"""Any tokenizer.json, run by the library `tokenizers`, which is imported only when one is used."""

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rope_jax.data.tokenizers.base import Tokens, token_dtype
from rope_jax.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE = re.compile("<0x..>")
_ADVICE = "name a tokenizer that can"


class JsonTokenizer:
    """The tokenizer of a tokenizer.json, without its truncation, padding and special tokens."""

    def __init__(self, content: str, bos: str | None, where: str, known: int | None = None) -> None:
        """content: of a tokenizer.json. bos: text of the token that starts a document.

        where: the file, as errors name it.
        known: size of the model's vocabulary. Only texts with added tokens beyond it are refused.

        UserError: the content is damaged, `bos` is not a token, or the tokenizer's own
        post-processor would add anything else to a document than `bos` before it.
        """
        self._library = _library_of(content, where)
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True  # like text, that is
        self._content, self._where = content, where
        self.bos_id = None if bos is None else self._id_of(bos)
        self.vocab_size = self._count_tokens(known)
        self._dtype = token_dtype(self.vocab_size)
        self.added = self._check_post_processor(bos)
        digest = hashlib.sha256(content.encode()).hexdigest()
        self.name = f"tokenizer.json {digest[:32]} bos {bos!r}"
        if self.vocab_size < self._count_tokens(None):  # texts with the other tokens are refused
            self.name += f" below {self.vocab_size}"

    def encode(self, text: str) -> Tokens:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """UserError: the tokenizer has no token for something in a text."""
        # it fails at a word outside the vocabulary, if there is no token for unknown ones
        with _library_errors(self._where, "cannot tokenize the documents", _ADVICE):
            encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._as_tokens(encoding.ids) for encoding in encodings]

    def decode(self, tokens: NDArray[np.integer[Any]]) -> str:
        kept = tokens if self.bos_id is None else tokens[tokens != self.bos_id]
        return self._library.decode(kept.tolist(), skip_special_tokens=False)

    @functools.cached_property
    def token_bytes(self) -> NDArray[np.int64]:
        """Bytes of UTF-8 of each token: int64 [V]; 0 for special tokens, which no text has.

        Byte-level tokens have a character for each byte. Elsewhere "▁" is a space, and "<0x0A>" a
        byte if the tokenizer falls back to bytes. So the tokens of a text add up to its bytes,
        except for a space that the tokenizer puts before it and for what its normalizer changes.
        """
        content = json.loads(self._library.to_str())
        parts = [content.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")]
        is_byte_level = '"ByteLevel"' in json.dumps(parts)
        falls_back = content["model"].get("byte_fallback", False)
        prefix = content["model"].get("continuing_subword_prefix") or ""

        def count(spelled: str) -> int:
            if is_byte_level:
                return len(spelled)
            if falls_back and _BYTE.fullmatch(spelled):
                return 1
            return len(spelled.removeprefix(prefix).replace(_SPACE, " ").encode())

        counts = np.zeros(self.vocab_size, np.int64)
        for spelled, token in self._library.get_vocab(with_added_tokens=False).items():
            if token < self.vocab_size:
                counts[token] = count(spelled)
        for token, added in self._library.get_added_tokens_decoder().items():
            if token < self.vocab_size:
                text = added.content if is_byte_level else added.content.replace(_SPACE, " ")
                counts[token] = 0 if added.special else len(text.encode())
        return counts

    def json(self) -> str:
        return self._content

    def _as_tokens(self, ids: list[int]) -> Tokens:
        tokens = np.array(ids, np.uint32)
        if tokens.size and tokens.max() >= self.vocab_size:  # would wrap in 16 bits
            token = int(tokens.max())
            raise UserError(
                f"tokenizer.path: {self._where} gives token {token} "
                f"({self._library.id_to_token(token)!r}) for a text, outside the vocabulary of "
                f"{self.vocab_size}"
            )
        return tokens.astype(self._dtype)

    def _count_tokens(self, known: int | None) -> int:
        """Return a number above every token that a document can hold.

        Other special tokens may lie beyond the model's vocabulary, as one of Gemma 3's does.
        """
        tokens = {*self._library.get_vocab(with_added_tokens=False).values()}
        for token, about in self._library.get_added_tokens_decoder().items():
            if not about.special and (known is None or token < known):
                tokens.add(token)
        if not tokens:
            raise UserError(f"tokenizer.path: {self._where} has no tokens")
        return max(*tokens, -1 if self.bos_id is None else self.bos_id) + 1

    def _id_of(self, bos: str) -> int:
        token = self._library.token_to_id(bos)
        if token is None:
            added = self._library.get_added_tokens_decoder().values()
            special = [repr(token.content) for token in added if token.special][:5]
            advice = "it has no special tokens; give null"
            if special:
                advice = f"its special tokens begin with {', '.join(special)}"
            raise UserError(f"tokenizer.bos: {self._where} has no token {bos!r}; {advice}")
        return token

    def _check_post_processor(self, bos: str | None) -> str:
        """Return what the post-processor adds to a text, for the user to read.

        UserError if it is more than `bos`: models trained so expect tokens that would be missing.
        """
        before, after = _added_tokens(self._library, self._where)
        shown = " and ".join(
            f"{' '.join(map(repr, tokens))} {where} it"
            for tokens, where in ((before, "before"), (after, "after"))
            if tokens
        )
        if not after and before in ([], [bos]):
            return shown or "nothing"
        put = "no token" if bos is None else repr(bos)
        is_one = len(before) == 1 and not after
        what = f"give tokenizer.bos={before[0]}, or remove it" if is_one else "remove them"
        raise UserError(
            f"tokenizer.bos: puts {put} before a document, but the post-processor of {self._where} "
            f"would add {shown}; {what} from the file's post_processor"
        )


def start_token(content: str, where: str) -> str | None:
    """Return the one token that a tokenizer.json's post-processor puts before a text, if any.

    where: the file, as errors name it. UserError: the content is damaged.
    """
    before, _ = _added_tokens(_library_of(content, where), where)
    return before[0] if len(before) == 1 else None


def _library_of(content: str, where: str) -> "Library":
    from tokenizers import Tokenizer as Library

    what = "is not readable as a tokenizer.json"
    with _library_errors(where, what, "name one that the library `tokenizers` wrote"):
        return Library.from_str(content)


@contextmanager
def _library_errors(where: str, what: str, advice: str) -> Iterator[None]:
    """Turn an error of the library in the block into a UserError: that `where` does `what`."""
    try:
        yield
    except BaseException as error:
        # Nothing more specific is raised; some damage ends in a panic, which is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        message = " ".join(str(error).split())
        raise UserError(f"tokenizer.path: {where} {what} ({message}); {advice}") from error


def _added_tokens(library: "Library", where: str) -> tuple[list[str], list[str]]:
    """Return the tokens that a post-processor puts before and after a text."""
    with _library_errors(where, "cannot tokenize a text", _ADVICE):
        encoding = library.encode("a", add_special_tokens=True)
    inner = [place for place, added in enumerate(encoding.special_tokens_mask) if not added]
    first, last = (inner[0], inner[-1] + 1) if inner else (len(encoding.ids), len(encoding.ids))
    return encoding.tokens[:first], encoding.tokens[last:]
