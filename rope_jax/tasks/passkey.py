"""`passkey`, `multikey` and `chain`: a value is hidden in a text, and asked for at its end."""

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.rope.settings import Whole
from rope_jax.tasks.base import Needle, Request, Sample, Task, hide
from rope_jax.tasks.draws import NAMES, distinct

Digits = Annotated[int, Field(ge=1, le=64), Whole]
_VARIABLES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


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
        value = "-".join(request.draws.digits(self.digits))
        return _keyed(request, ["PASS"], [value], [request.depth], f"digits: {self.digits}")


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
        draws = request.draws
        names = [NAMES[n] for n in draws.different(len(NAMES), self.keys)]
        make = {
            "digits": lambda: "-".join(draws.digits(self.digits)),
            "words": draws.words,
            "uuids": draws.uuid,
        }
        values = distinct(make[self.values], self.keys)
        others = self.keys - 1
        shares = [request.depth, *((part + draws.fraction()) / others for part in range(others))]
        return _keyed(request, names, values, shares, f"keys: {self.keys}")


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
        if self.chains * (self.hops + 1) > len(_VARIABLES):
            raise ValueError(
                f"chains: {self.chains} of {self.hops} hops have more than {len(_VARIABLES)} "
                f"variables; take at most {len(_VARIABLES) // (self.hops + 1)}"
            )
        return self

    @property
    def chance(self) -> float:
        return 1 / self.chains if self.chains > 1 else 10.0**-self.digits

    def sample(self, request: Request) -> Sample:
        words, draws, depth = request.words, request.draws, request.depth
        each = self.hops + 1
        names = [_VARIABLES[n] for n in draws.different(len(_VARIABLES), self.chains * each)]
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


def _keyed(
    request: Request, names: list[str], values: list[str], shares: list[float], setting: str
) -> Sample:
    """Return the sample that hides <<name:value>> at each place, and asks for the first value."""
    words = request.words
    needles = [
        Needle(share, words.joined(f"<<{name}:", value, ">>"), asked=name == names[0])
        for share, name, value in zip(shares, names, values, strict=True)
    ]
    question, answer = words.encode(f"<<{names[0]}:"), words.encode(values[0])
    return hide(needles, request, question=question, answer=answer, setting=setting)
