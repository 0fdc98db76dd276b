"""The byte tokenizer: text to tokens and back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class ByteTokenizer:
    """256 tokens for the bytes of UTF-8, and one that starts a document."""

    name = "bytes"
    vocab_size = 257
    bos_id = 256
    bytes_per_token = 1.0

    def encode(self, text: str) -> NDArray[np.uint16]:
        """Return the UTF-8 bytes of a text, without a document start: uint16 [bytes]."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.uint16)

    def decode(self, tokens: NDArray[np.integer[Any]]) -> str:
        """Return the text without document starts; a cut character, not being UTF-8, becomes �."""
        kept = tokens[tokens != self.bos_id]
        return kept.astype(np.uint8).tobytes().decode("utf-8", "replace")
