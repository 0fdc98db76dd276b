"""The byte tokenizer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class ByteTokenizer:
    """The 256 bytes of UTF-8, and one token that starts a document."""

    name = "bytes"
    vocab_size = 257
    bos_id = 256
    bytes_per_token = 1.0

    def encode(self, text: str) -> NDArray[np.uint16]:
        """The bytes of the text, without a document start: uint16 [bytes]."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.uint16)

    def decode(self, tokens: NDArray[np.integer[Any]]) -> str:
        """The text; document starts are left out, and what is not UTF-8 (a cut character) is �."""
        kept = tokens[tokens != self.bos_id]
        return kept.astype(np.uint8).tobytes().decode("utf-8", "replace")
