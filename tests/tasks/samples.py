"""Models' words, a text, and how samples are read, for the tests of this folder."""

import re

import numpy as np

from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.tasks import TASKS, Draws, Request, TokenizerView

BYTES = TokenizerView(ByteTokenizer().encode, 257, (256,), has_words=False)
NO_START = BYTES._replace(bos_ids=())
# No two stretches of 4 bytes are equal, and no byte is a key's, a digit or a sign.
TEXT = np.array([(x, y) for x in range(0xA0, 0xC0) for y in range(0xC0, 0x100)], np.uint8).ravel()


class Merging:
    """A tokenizer with a space before every text, and tokens of a word with the space before it.

    Its tokens are numbered as they first occur, from 1; 0 starts a document.
    """

    def __init__(self):
        self.texts = ["<s>"]

    def encode(self, text):
        pieces = re.findall(r"\n| ?(?:[a-z]+|[0-9]{1,3}|[^a-z0-9 \n])| ", f" {text}", re.IGNORECASE)
        assert "".join(pieces) == f" {text}"
        self.texts += sorted(set(pieces) - set(self.texts))
        return np.array([self.texts.index(piece) for piece in pieces], np.uint16)

    def decode(self, tokens):
        return "".join(self.texts[token] for token in tokens)


def sample(task, length, depth=0.0, *, words=BYTES, text=TEXT, seed=0, ablated=False, **settings):
    """Return one sample of a task by its name."""
    made = TASKS[task](**settings)
    return made.sample(Request(words, text, Draws(7, seed), length, depth, ablated))


def read(tokens):
    """Return the text of a byte model's tokens, one character per byte, without the start."""
    return bytes(token for token in tokens.tolist() if token < 256).decode("latin-1")


def answered(made):
    """Return the tokens of each answer."""
    targets = made.tokens[1:]
    return [targets[made.answers == number].tolist() for number in range(made.answers.max() + 1)]


def said(made):
    """Return the text of the only answer of a byte model's sample."""
    (tokens,) = answered(made)
    return read(np.array(tokens))
