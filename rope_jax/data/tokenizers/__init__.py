"""Text to tokens and back: bytes, any tokenizer.json, or a byte-level BPE trained on the corpus."""

from rope_jax.data.tokenizers.base import Tokenizer, describe_tokenizer
from rope_jax.data.tokenizers.byte_level import ByteTokenizer
from rope_jax.data.tokenizers.from_json import JsonTokenizer
from rope_jax.data.tokenizers.opening import open_tokenizer, read_tokenizer

__all__ = [
    "ByteTokenizer",
    "JsonTokenizer",
    "Tokenizer",
    "describe_tokenizer",
    "open_tokenizer",
    "read_tokenizer",
]
