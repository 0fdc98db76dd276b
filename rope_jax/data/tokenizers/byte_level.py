"""Byte-level tokenizers: the bytes themselves, or a BPE trained on texts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rope_jax.config.tokenizer import START_TOKEN
from rope_jax.data.tokenizers.base import Tokens
from rope_jax.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

BPE_RECIPE = 1
"""Increment when the same texts would no longer give the same tokenizer."""


class ByteTokenizer:
    """256 tokens for the bytes of UTF-8, and one that starts a document."""

    name = "bytes"
    vocab_size = 257
    bos_id: int | None = 256
    added = "nothing"
    token_bytes = np.append(np.ones(256, np.int64), 0)

    def encode(self, text: str) -> Tokens:
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.uint16)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        return [self.encode(text) for text in texts]

    def decode(self, tokens: NDArray[np.integer[Any]]) -> str:
        kept = tokens[tokens != self.bos_id]
        return kept.astype(np.uint8).tobytes().decode("utf-8", "replace")

    def json(self) -> str:
        """Return an equivalent tokenizer.json: byte-level BPE without merges, token b for byte b.

        Its post-processor adds the document start, which these models were trained with.
        """
        from tokenizers import AddedToken, models, pre_tokenizers

        # Visible characters of Latin-1 stand for themselves; U+0100 and so on for the other bytes.
        characters = sorted(pre_tokenizers.ByteLevel.alphabet())
        visible = {character: ord(character) for character in characters if character < "\u0100"}
        others = sorted(set(range(256)) - set(visible.values()))
        vocab = visible | dict(zip(characters[len(visible) :], others, strict=True))
        library = _byte_level(models.BPE(vocab=vocab, merges=[]), use_regex=False)
        library.add_special_tokens([AddedToken(START_TOKEN, special=True, normalized=False)])
        _add_start(library)
        return library.to_str(pretty=True)


def train_bpe(texts: Iterable[Sequence[str]], vocab_size: int) -> str:
    """Return the content of a tokenizer.json with byte-level BPE: Sennrich et al., 1508.07909.

    Texts are cut into words and spaces as by GPT-2 (Radford et al., 2019, section 2.2), and a
    merge never crosses such a cut. Every byte is a token, and nothing is normalised, so that any
    text is recovered exactly. The same texts give the same tokenizer.

    texts: batches of texts. vocab_size: tokens, the 256 bytes and the document start included.

    UserError: there is not enough text for so many tokens.
    """
    from tokenizers import AddedToken, models, pre_tokenizers
    from tokenizers.trainers import BpeTrainer

    library = _byte_level(models.BPE(), use_regex=True)
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[AddedToken(START_TOKEN, special=True, normalized=False)],
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


def _byte_level(model: Any, use_regex: bool) -> "Library":
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    library = Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    library.decoder = decoders.ByteLevel()
    return library


def _add_start(library: "Library") -> None:
    """Have the post-processor put the document start before a text."""
    from tokenizers import processors

    library.post_processor = processors.TemplateProcessing(
        single=f"{START_TOKEN} $A",
        pair=f"{START_TOKEN} $A {START_TOKEN} $B",
        special_tokens=[(START_TOKEN, library.token_to_id(START_TOKEN))],
    )
