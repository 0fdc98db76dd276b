"""`passkey` and `multikey`: a key is hidden in a text, and asked for at its end."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from rope_jax.rope.numbers import Whole
from rope_jax.tasks.base import Needle, Request, Sample, Task, hide
from rope_jax.tasks.draws import NAMES, distinct

Digits = Annotated[int, Field(ge=1, le=64), Whole]


class Passkey(Task):
    """A number is hidden in a text, and its beginning at the end asks for the digits.

    FILLER <<PASS:7-4-2-9-1>> FILLER <<PASS: → 7-4-2-9-1
    """

    title: ClassVar[str] = "passkey"
    source: ClassVar[str] = "after Mohtashami & Jaggi, arXiv 2305.16300, §4.2"
    task: Literal["passkey"] = "passkey"
    digits: Digits = Field(5, description="digits of the key")

    @property
    def chance(self) -> float:
        return 10.0**-self.digits

    def sample(self, request: Request) -> Sample:
        words = request.words
        question = words.encode("<<PASS:")
        answer = words.encode("-".join(request.draws.digits(self.digits)))
        needle = np.concatenate([question, answer, words.encode(">>")])
        return hide(
            [Needle(request.depth, needle, asked=True)],
            request,
            question=question,
            answer=answer,
            setting=f"digits: {self.digits}",
        )


class Multikey(Task):
    """Several keys with a value each are hidden in a text, and one is asked for at its end.

    FILLER <<jade:1-0-9-3-3>> FILLER <<amber:7-4-2-9-1>> FILLER <<amber: → 7-4-2-9-1

    The keys that are not asked for are spread over the text: one in each of keys − 1 equal parts,
    at a random place. The chance level is that of guessing one of the values.
    """

    title: ClassVar[str] = "multikey"
    source: ClassVar[str] = "after RULER's multikey needles, Hsieh et al., arXiv 2404.06654, §3"
    task: Literal["multikey"] = "multikey"
    keys: Annotated[int, Field(ge=2, le=len(NAMES)), Whole] = Field(
        4, description="keys, of which one is asked for"
    )
    values: Literal["digits", "words", "uuids"] = Field(
        "digits", description="values of the keys: digits, three words, or UUIDs"
    )
    digits: Digits = Field(5, description="digits of a value; for values: digits")

    @model_validator(mode="after")
    def _values_can_differ(self) -> "Multikey":
        if self.values == "digits" and 10**self.digits < self.keys:
            raise ValueError(f"digits: {self.keys} keys need values of 2 digits or more to differ")
        return self

    @property
    def chance(self) -> float:
        return 1 / self.keys

    def sample(self, request: Request) -> Sample:
        words, draws = request.words, request.draws
        names = [NAMES[n] for n in draws.different(len(NAMES), self.keys)]
        make = {
            "digits": lambda: "-".join(draws.digits(self.digits)),
            "words": draws.words,
            "uuids": draws.uuid,
        }
        hidden = distinct(make[self.values], self.keys)
        others = self.keys - 1
        places = [request.depth, *((part + draws.fraction()) / others for part in range(others))]
        end = words.encode(">>")
        questions = [words.encode(f"<<{name}:") for name in names]
        answers = [words.encode(value) for value in hidden]
        texts = map(np.concatenate, zip(questions, answers, [end] * self.keys, strict=True))
        asked, *rest = map(Needle, places, texts)
        return hide(
            [asked._replace(asked=True), *rest],
            request,
            question=questions[0],
            answer=answers[0],
            setting=f"keys: {self.keys}",
        )
