"""Samples of tasks among the rows of training batches: pure functions of (seed, stage, step, row).

Shapes: B rows, T tokens per window.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_jax.config.tasks import MixedTask
from rope_jax.data.tokenizers import Tokenizer
from rope_jax.errors import UserError
from rope_jax.tasks import Draws, Request, TokenizerView

# Draws for other purposes are those of `batches`.
_FOR_TASKS = 3


class Mix(NamedTuple):
    """Which tasks are mixed into the rows of a batch."""

    tasks: tuple[MixedTask, ...]
    words: TokenizerView

    def replace(
        self, windows: NDArray[np.int32], rows: NDArray[np.int64], *seed: int
    ) -> NDArray[np.int64]:
        """Replace the ends of some windows in place by samples; return where these begin: [B].

        T + 1 where a window has no sample. windows: int32 [B, T + 1]. rows: the number of each in
        the whole batch, which does not depend on how hosts share it. seed: of the step.

        A row has a sample of each task with the probability of its share. Its length is equally
        likely to be any from the task's shortest to T, and what is asked for lies at any depth.
        """
        longest = windows.shape[1] - 1
        begins = np.full(len(windows), longest + 1)
        for index, row in enumerate(rows.tolist()):
            draws = Draws(*seed, row, purpose=_FOR_TASKS)
            left = draws.fraction()
            for number, task in enumerate(self.tasks):
                left -= task.share
                if left < 0:
                    shortest = min(task.shortest or longest, longest)
                    length = shortest + draws.below(longest - shortest + 1)
                    depth = draws.fraction()
                    request = Request(self.words, windows[index], draws, length, depth)
                    try:
                        sample = task.sample(request)
                    except ValueError as error:  # a key of more tokens than the one of `check`
                        raise UserError(f"data.mix.{number}.{error}") from None
                    begins[index] = longest - length
                    windows[index, longest - length :] = sample.tokens
                    break
        return begins

    def check(self, seq_len: int, stage: int) -> None:
        """UserError if a task cannot be asked of this tokenizer, or in a stage's windows."""
        text = np.zeros(seq_len + 1, np.int32)
        for index, task in enumerate(self.tasks):
            if task.needs_words and not self.words.has_words:
                raise UserError(
                    f"data.mix.{index}.task: {task.task} is for a tokenizer whose tokens are "
                    "longer than a byte; choose passkey, or another tokenizer"
                )
            shortest = min(task.shortest or seq_len, seq_len)
            try:
                task.sample(Request(self.words, text, Draws(0), shortest, 0.5))
            except ValueError as error:
                raise UserError(
                    f"data.mix.{index}.{error}; stages[{stage}].seq_len is {seq_len}"
                ) from None


def mix_of(tasks: tuple[MixedTask, ...], tokenizer: Tokenizer) -> Mix | None:
    """Return the mix of a config's tasks; None if it has none."""
    return Mix(tasks, words_of(tokenizer)) if tasks else None


def words_of(tokenizer: Tokenizer) -> TokenizerView:
    """Return how a tokenizer makes the tokens of a task's samples."""
    has_words = tokenizer.name != "bytes"
    return TokenizerView(tokenizer.encode, tokenizer.vocab_size, tokenizer.bos_ids, has_words)
