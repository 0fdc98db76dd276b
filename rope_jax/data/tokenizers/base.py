"""What every tokenizer provides. None of them adds a document start: the config decides that."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rope_jax.config.tokenizer import TokenizerConfig

Tokens = NDArray[np.unsignedinteger[Any]]


@runtime_checkable
class Tokenizer(Protocol):
    """A tokenizer and the document start that goes with it."""

    name: str
    """Equal names give equal tokens for every text: "bytes", or a hash of the tokenizer.json and
    the text of the document start."""
    vocab_size: int
    """Every token is below it."""
    bos_id: int | None
    """The token that starts a document; None: documents begin with their first token."""
    added: str
    """What the tokenizer's own post-processor would add to a text, for the user to read."""

    @property
    def token_bytes(self) -> NDArray[np.int64]:
        """How many bytes of UTF-8 each token stands for: [vocab_size]; 0 for document starts."""

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a text, in `token_dtype(vocab_size)`, without a document start.

        Text that looks like a special token, such as "<s>" in a web page, is text.
        """

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """Return `encode` of each text; several threads may share the work."""

    def decode(self, tokens: NDArray[np.integer[Any]]) -> str:
        """Return the text of tokens without document starts; a truncated character becomes �."""

    def json(self) -> str:
        """Return the content of a tokenizer.json that gives the same tokens."""


def describe_tokenizer(config: TokenizerConfig, tokenizer: Tokenizer) -> str:
    """Return one line on a tokenizer: what precedes a document, and what it would add by itself."""
    bos_id = tokenizer.bos_id
    start = "none" if bos_id is None else f"{config.start} (token {bos_id})"
    line = f"{config.type}, {tokenizer.vocab_size:,} tokens; document start: {start}"
    if config.type == "bytes":  # there is no post-processor
        return line
    return f"{line}; its own post-processor adds {tokenizer.added}"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the type of tokens in memory and on disk: 16 bits up to 65,536 tokens, else 32."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")
