"""The bytes of text that each token stands for, from the token's own spelling."""

import json
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def token_bytes(library: "Library", vocab_size: int) -> NDArray[np.int64]:
    """Count the bytes of UTF-8 of each token: int64 [V]; 0 for special tokens, which no text has.

    Byte-level tokens have a character for each byte. Elsewhere "▁" is a space, and "<0x0A>" a byte
    if the tokenizer falls back to bytes. So the tokens of a text add up to its bytes, except for a
    space that the tokenizer puts in front of it, and for what its normalizer changes.
    """
    content = json.loads(library.to_str())
    parts = [content.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")]
    is_byte_level = '"ByteLevel"' in json.dumps(parts)
    falls_back = content["model"].get("byte_fallback", False)
    prefix = content["model"].get("continuing_subword_prefix") or ""

    def count(spelled: str) -> int:
        if is_byte_level:
            return len(spelled)
        if falls_back and len(spelled) == 6 and spelled.startswith("<0x") and spelled[-1] == ">":
            return 1
        return len(spelled.removeprefix(prefix).replace(_SPACE, " ").encode())

    found = np.zeros(vocab_size, np.int64)
    for spelled, token in library.get_vocab(with_added_tokens=False).items():
        if token < vocab_size:
            found[token] = count(spelled)
    for token, added in library.get_added_tokens_decoder().items():
        if token < vocab_size:
            text = added.content if is_byte_level else added.content.replace(_SPACE, " ")
            found[token] = 0 if added.special else len(text.encode())
    return found
