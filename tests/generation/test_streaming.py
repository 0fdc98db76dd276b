"""The text of a stream of tokens: whole characters, and nothing of a stop text."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rope_jax.data.tokenizers import ByteTokenizer, JsonTokenizer, train_bpe
from rope_jax.generation.prompt import prompt_tokens
from rope_jax.generation.streaming import TextStream

TEXT = "Ein Käse für 3 €, bitte! 👩‍🚀 数学"
BYTES = ByteTokenizer()
BPE = JsonTokenizer(train_bpe([[TEXT * 3]], 280), "<|begin_of_text|>", "bpe")


def streamed(tokenizer, prompt, text, stop=()):
    """Return the pieces in which a text appears, and what ended it."""
    stream = TextStream(tokenizer, prompt_tokens(tokenizer, prompt), stop)
    pieces = [stream.add(token) for token in tokenizer.encode(text).tolist() if not stream.ended_by]
    return [*pieces, stream.rest()], stream.ended_by


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_the_pieces_are_the_text_in_whole_characters(tokenizer):
    pieces, ended_by = streamed(tokenizer, "Käse: ", TEXT)
    assert ("".join(pieces[:-1]), pieces[-1], ended_by) == (TEXT, "", "")
    # a text that ends inside of a character
    stream = TextStream(BYTES, [1], (), [7])
    assert [stream.add(token) for token in [*"a€".encode()[:-1], 7]] == ["a", "", "", "\ufffd"]
    assert stream.ended_by == "the model"


@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@pytest.mark.parametrize("stop", [["bitte"], ["3 €, b", "bitte"], ["€ 3", "!", "tt"], ["?", "zzz"]])
def test_nothing_of_a_stop_text_appears(tokenizer, stop):
    pieces, ended_by = streamed(tokenizer, "bitte", TEXT, stop)
    ends = [TEXT.index(text) for text in stop if text in TEXT]
    assert "".join(pieces) == TEXT[: min(ends, default=None)]
    assert ended_by == ("a stop text" if ends else "")


def test_a_space_before_the_first_word_stays():
    """A tokenizer of SentencePiece leaves out that in front of the first token it decodes."""
    library = Tokenizer(models.WordLevel({"▁the": 0, "▁sea": 1, "s": 2, "<unk>": 3}, "<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    tokenizer = JsonTokenizer(library.to_str(), None, "words")
    assert tokenizer.decode(np.array([1])) == "sea"
    stream = TextStream(tokenizer, [0])
    assert [stream.add(1), stream.add(2)] == [" sea", "s"]
