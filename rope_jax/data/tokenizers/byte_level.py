"""The byte tokenizer: text to tokens and back."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_jax.config.tokenizer import START_TOKEN
from rope_jax.data.tokenizers.base import Tokens


class ByteTokenizer:
    """256 tokens for the bytes of UTF-8, and one that starts a document."""

    name = "bytes"
    vocab_size = 257
    bos_id: int | None = 256
    added = "nothing"
    token_bytes = np.append(np.ones(256, np.int64), 0)

    def encode(self, text: str) -> Tokens:
        """Return the UTF-8 bytes of a text, without a document start: uint16 [bytes]."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.uint16)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """Return `encode` of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, tokens: NDArray[np.integer[Any]]) -> str:
        """Return the text without document starts; a truncated character becomes �."""
        kept = tokens[tokens != self.bos_id]
        return kept.astype(np.uint8).tobytes().decode("utf-8", "replace")

    def json(self) -> str:
        """Return an equivalent tokenizer.json: byte-level BPE without merges, token b for byte b.

        Its post-processor adds the document start, which these models were trained with.
        """
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                      "use_regex": False}  # fmt: skip
        start = {"SpecialToken": {"id": START_TOKEN, "type_id": 0}}
        content: dict[str, Any] = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": 256, "content": START_TOKEN, "single_word": False, "lstrip": False,
                 "rstrip": False, "normalized": False, "special": True}
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [start, {"Sequence": {"id": "A", "type_id": 0}},
                         start, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {
                    START_TOKEN: {"id": START_TOKEN, "ids": [256], "tokens": [START_TOKEN]}
                },
            },
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {c: b for b, c in enumerate(_characters())}, "merges": []},
        }  # fmt: skip
        return json.dumps(content, ensure_ascii=False, indent=1)


def _characters() -> list[str]:
    """Return the printable character that stands for each byte, as in GPT-2's encoder.

    Visible characters of Latin-1 stand for themselves, the other bytes are U+0100, U+0101, ….
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    code = {byte: 0x100 + number for number, byte in enumerate(others)}
    return [chr(code.get(byte, byte)) for byte in range(256)]
