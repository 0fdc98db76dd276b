"""The text of tokens that come one by one."""

from collections.abc import Sequence

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
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()
    ) -> None:
        self._tokenizer, self._stop, self._tokens = tokenizer, stop, list(prompt[-_CONTEXT:])
        self._before, self._given = 0, 0
        self._before = len(self._text())
        #: Whether a stop text ended it.
        self.is_stopped = False

    def add(self, token: int) -> str:
        """Return the text that is new with a token."""
        self._tokens.append(token)
        text = self._text().rstrip(_INCOMPLETE)
        if ends := [text.index(stop) for stop in self._stop if stop in text]:
            self.is_stopped = True
            return self._new(text[: min(ends)])
        begun = [stop[:size] for stop in self._stop for size in range(1, len(stop))]
        held = max((len(begin) for begin in begun if text.endswith(begin)), default=0)
        return self._new(text[: len(text) - held])

    def rest(self) -> str:
        """Return the rest of the text, after the last token."""
        return "" if self.is_stopped else self._new(self._text())

    def _text(self) -> str:
        return self._tokenizer.decode(np.array(self._tokens))[self._before :]

    def _new(self, text: str) -> str:
        new, self._given = text[self._given :], len(text)
        return new
