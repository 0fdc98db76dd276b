"""`chain`: variables are set to one another, and the value of the last one is asked for."""

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.rope.settings import Whole
from rope_jax.tasks.base import Needle, Request, Sample, Task, hide
from rope_jax.tasks.draws import distinct

_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Chain(Task):
    """A variable has a number, others are set to it one after the other: which has the last one?

    FILLER VAR A = 12345 FILLER VAR B = VAR A FILLER VAR C = VAR B FILLER VALUE C = → 12345

    Each statement ends with a line break. The number is at the depth, and the statements that
    follow and the question divide the rest equally. Another chain begins at a random place.
    Ablated, the statement of the number is missing. The chance level is that of guessing one of the
    numbers.
    """

    title: ClassVar[str] = "chain"
    source: ClassVar[str] = "after RULER's variable tracking, Hsieh et al., arXiv 2404.06654, §3"
    task: Literal["chain"] = "chain"
    hops: Annotated[int, Field(ge=1, le=4), Whole] = Field(
        2, description="links from the number to the variable that is asked for"
    )
    chains: Annotated[int, Field(ge=1, le=13), Whole] = Field(
        2, description="chains with different numbers, of which one is asked for"
    )
    digits: Annotated[int, Field(ge=2, le=64), Whole] = Field(5, description="digits of a number")

    @model_validator(mode="after")
    def _names_suffice(self) -> "Chain":
        if self.chains * (self.hops + 1) > len(_NAMES):
            raise ValueError(
                f"chains: {self.chains} of {self.hops} hops have more than {len(_NAMES)} "
                f"variables; take at most {len(_NAMES) // (self.hops + 1)}"
            )
        return self

    @property
    def chance(self) -> float:
        return 1 / self.chains if self.chains > 1 else 10.0**-self.digits

    def sample(self, request: Request) -> Sample:
        words, draws, depth = request.words, request.draws, request.depth
        each = self.hops + 1
        names = [_NAMES[n] for n in draws.different(len(_NAMES), self.chains * each)]
        numbers = distinct(lambda: draws.digits(self.digits), self.chains)
        firsts = [depth, *(draws.fraction() for _ in range(self.chains - 1))]
        needles = []
        for chain, (number, first) in enumerate(zip(numbers, firsts, strict=True)):
            variables = names[chain * each :][:each]
            statement = words.joined(f"VAR {variables[0]} = ", number, "\n")
            needles.append(Needle(first, statement, asked=chain == 0))
            for link, (to, named) in enumerate(pairwise(variables), start=1):
                statement = words.joined(f"VAR {named} = VAR {to}", "\n")
                needles.append(Needle(first + (1 - first) * link / each, statement))
        return hide(
            needles,
            request,
            question=words.encode(f"VALUE {names[self.hops]} = "),
            answer=words.encode(numbers[0]),
            setting=f"hops: {self.hops}",
        )
