"""`passkey`: a number is hidden in a text, and asked for at its end."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rope_jax.rope.settings import Whole
from rope_jax.tasks.base import Request, Sample, Task, hide


class Passkey(Task):
    """A number is hidden in a text, and its beginning at the end asks for the digits.

    FILLER <<PASS:7-4-2-9-1>> FILLER <<PASS: → 7-4-2-9-1
    """

    title: ClassVar[str] = "passkey"
    source: ClassVar[str] = "after Mohtashami & Jaggi, arXiv 2305.16300, §4.2"
    task: Literal["passkey"] = "passkey"
    digits: Annotated[int, Field(ge=1, le=64), Whole] = Field(5, description="digits of the key")

    @property
    def chance(self) -> float:
        return 10.0**-self.digits

    def sample(self, request: Request) -> Sample:
        words, value = request.words, "-".join(request.draws.digits(self.digits))
        return hide(
            words.joined("<<PASS:", value, ">>"),
            request,
            question=words.encode("<<PASS:"),
            answer=words.encode(value),
            setting=f"digits: {self.digits}",
        )
