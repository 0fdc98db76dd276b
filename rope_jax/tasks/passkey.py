"""`passkey` and `multikey`: a key is hidden in a text, and asked for at its end."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rope_jax.tasks.base import Sample, Task, Words, answer_at_end
from rope_jax.tasks.draws import Draws


class Passkey(Task):
    """A number is hidden in a text, and its beginning at the end asks for the digits.

    FILLER <<PASS:7-4-2-9-1>> FILLER <<PASS: → 7-4-2-9-1
    """

    title: ClassVar[str] = "passkey"
    source: ClassVar[str] = "after Mohtashami & Jaggi, arXiv 2305.16300, §4.2"
    task: Literal["passkey"] = "passkey"
    digits: Annotated[int, Field(ge=1, le=64)] = Field(5, description="digits of the key")

    @property
    def chance(self) -> float:
        return 10.0**-self.digits

    def sample(
        self,
        words: Words,
        text: NDArray[np.integer],
        draws: Draws,
        length: int,
        depth: float,
        *,
        taken_out: bool = False,
    ) -> Sample:
        question = words.encode("<<PASS:")
        answer = words.encode("-".join(str(draws.below(10)) for _ in range(self.digits)))
        needle = np.concatenate([question, answer, words.encode(">>")])
        start = words.start()
        free = length + 1 - len(start) - len(question) - len(answer)
        if free < len(needle):
            raise ValueError("x")
        if taken_out:
            needle = needle[:0]
        count = free - len(needle)
        filler = text[len(text) - count :]
        before = round(depth * count)
        tokens = [start, filler[:before], needle, filler[before:], question, answer]
        return answer_at_end(np.concatenate(tokens), len(answer))
