"""Train a byte-level BPE on texts."""

from collections.abc import Iterable, Sequence

from rope_jax.config.tokenizer import START_TOKEN
from rope_jax.errors import UserError

RECIPE = 1
"""Increment when the same texts would no longer give the same tokenizer."""


def train_bpe(texts: Iterable[Sequence[str]], vocab_size: int) -> str:
    """Return the content of a tokenizer.json with byte-level BPE: Sennrich et al., 1508.07909.

    Texts are cut into words and spaces as by GPT-2 (Radford et al., 2019, section 2.2), and a
    merge never crosses such a cut. Every byte is a token, and nothing is normalised, so that any
    text is recovered exactly. The same texts give the same tokenizer.

    texts: batches of texts. vocab_size: tokens, the 256 bytes and the document start included.

    UserError: there is not enough text for so many tokens.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        special_tokens=[AddedToken(START_TOKEN, special=True, normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    library.train_from_iterator(texts, trainer)
    found = library.get_vocab_size(with_added_tokens=True)
    if found < vocab_size:
        raise UserError(
            f"tokenizer.vocab_size: the train split is enough text for {found:,} tokens, not "
            f"{vocab_size:,}; lower it, or give more text"
        )
    start = library.token_to_id(START_TOKEN)
    library.post_processor = processors.TemplateProcessing(
        single=f"{START_TOKEN} $A",
        pair=f"{START_TOKEN} $A {START_TOKEN} $B",
        special_tokens=[(START_TOKEN, start)],
    )
    return library.to_str()
