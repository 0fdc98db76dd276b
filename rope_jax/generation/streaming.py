"""The text of tokens that come one by one."""

from collections.abc import Container, Sequence

import numpy as np

from rope_jax.data.tokenizers import Tokenizer

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 8  # tokens, because a tokenizer may leave out a space before the first one


class TextStream:
    """The text that follows a prompt, of which only what no later token can change is given.

    That excludes the first bytes of a character, what may be the beginning of a stop text, and
    everything from a stop text on.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        ends: Container[int] = (),
    ) -> None:
        """stop, ends: texts and tokens that end the text, and are not part of it."""
        self._tokenizer, self._tokens = tokenizer, list(prompt[-_CONTEXT:])
        self._stop, self._ends, self._given = stop, ends, 0
        self._before = len(tokenizer.decode(np.array(self._tokens)))
        self.ended_by = ""

    def add(self, token: int) -> str:
        """Return the text that is new with a token."""
        if token in self._ends:
            self.ended_by = "the model"
            return self.rest()
        self._tokens.append(token)
        text = self._text().rstrip(_INCOMPLETE)
        if found := [text.index(stop) for stop in self._stop if stop in text]:
            self.ended_by = "a stop text"
            return self._new(text[: min(found)])
        begun = [stop[:size] for stop in self._stop for size in range(1, len(stop))]
        held = max((len(begin) for begin in begun if text.endswith(begin)), default=0)
        return self._new(text[: len(text) - held])

    def rest(self) -> str:
        """Return the rest of the text, after the last token."""
        return "" if self.ended_by == "a stop text" else self._new(self._text())

    def _text(self) -> str:
        return self._tokenizer.decode(np.array(self._tokens))[self._before :]

    def _new(self, text: str) -> str:
        new, self._given = text[self._given :], len(text)
        return new
