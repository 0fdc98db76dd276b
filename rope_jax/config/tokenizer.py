"""Schema of the tokenizer."""

from typing import Annotated, Literal

from pydantic import Field

from rope_jax.config.types import Frozen, ListOf
from rope_jax.rope.settings import Whole

START_TOKEN = "<|begin_of_text|>"
"""Text of the document-start token of the tokenizers made here: that of bytes, and bpe."""

_Token = Annotated[str, Field(min_length=1)]
Start = _Token | Annotated[ListOf[_Token], Field(min_length=2)] | None
"""The text of the token before each document; several in a list (GLM-4 has two); None: none."""


def start_tokens(start: Start) -> tuple[str, ...]:
    """Return the texts of the tokens before each document, however many there are."""
    return (start,) if isinstance(start, str) else start or ()


class _TokenizerConfig(Frozen):
    @property
    def start(self) -> Start:
        return START_TOKEN


class ByteTokenizerConfig(_TokenizerConfig):
    """The bytes of UTF-8, and a token that starts a document: 257 tokens."""

    type: Literal["bytes"] = "bytes"


class FileTokenizerConfig(_TokenizerConfig):
    """A tokenizer.json, as the Hugging Face library `tokenizers` writes it."""

    type: Literal["file"] = "file"
    path: str = Field(description="the tokenizer.json, of which a run keeps a copy")
    bos: Start = Field(None, description="token or tokens before each document; null: none")

    @property
    def start(self) -> Start:
        return self.bos


class BPETokenizerConfig(_TokenizerConfig):
    """Byte-level BPE, trained on the train split, with a token of its own to start a document."""

    type: Literal["bpe"] = "bpe"
    # 256 bytes and the document start
    vocab_size: Annotated[int, Field(ge=257, le=2**20), Whole] = Field(
        8192, description="with the 256 bytes and the document start"
    )


TokenizerConfig = Annotated[
    ByteTokenizerConfig | FileTokenizerConfig | BPETokenizerConfig, Field(discriminator="type")
]
