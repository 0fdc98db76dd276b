"""`mqar`: multi-query associative recall on random tokens."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from jaxtyping import Int64
from pydantic import Field, model_validator

from rope_jax.rope.settings import Whole
from rope_jax.tasks.base import Request, Sample, Task
from rope_jax.tasks.draws import Draws

_VOCABULARY = 8192
_PAIRS = 4
_POWER = 0.01
"""a of the gaps: the i-th place after the pairs is chosen with p ∝ a·i^(a − 1)."""


class MQAR(Task):
    """Pairs of keys and values, then each key once more: which value has it?

    START k₁ v₁ k₂ v₂ … FILLER k₂ → v₂ FILLER k₁ → v₁ FILLER

    As in the original, keys are from the lower half of the vocabulary and values from the upper
    one, no two of them are equal, and the filler is random tokens. Unlike there, none of these is a
    key of the window (with a vocabulary of bytes, keys would recur with other values), an answer
    stays in the window after its question, the key 0 counts, and V is the model's vocabulary where
    that has fewer than 8,192 tokens (bytes: 256). Each value is an answer by itself. Ablated, each
    pair has another random value. The chance level is that of guessing one of the values, 1 / k;
    whoever leaves out those already given is right more often. With `load` it falls with the
    length.
    """

    title: ClassVar[str] = "associative recall"
    source: ClassVar[str] = "Arora et al., arXiv 2312.04927, HazyResearch/zoology multiquery_ar.py"
    task: Literal["mqar"] = "mqar"
    has_depth: ClassVar[bool] = False
    pairs: Annotated[int, Field(ge=1, le=_VOCABULARY // 2), Whole] | None = Field(
        None, description=f"k, pairs of a key and a value; null: {_PAIRS}, or by load"
    )
    load: Annotated[float, Field(gt=0, le=0.25)] | None = Field(
        None, description="k as a share of the length, rounded down to at least 1; null: see pairs"
    )

    @model_validator(mode="after")
    def _one_says_how_many(self) -> "MQAR":
        if None not in (self.pairs, self.load):
            raise ValueError("load: pairs is given as well; give one of them")
        return self

    @property
    def chance(self) -> float | None:
        return 1 / (self.pairs or _PAIRS) if self.load is None else None

    def sample(self, request: Request) -> Sample:
        words, draws, length = request.words, request.draws, request.length
        k = self.pairs or _PAIRS if self.load is None else max(1, int(self.load * length))
        setting = "pairs" if self.load is None else "load"
        start, tokens = words.start(), words.ordinary(_VOCABULARY)
        half = len(tokens) // 2
        if k > half:
            raise ValueError(
                f"{setting}: {k:,} pairs need as many keys, and half of the tokens are {half:,}"
            )
        window = 4 * k + len(start) - 1
        if length < window:
            raise ValueError(
                f"{setting}: {k:,} pairs and questions need a window of {window:,} tokens, not "
                f"{length:,}; take a longer one, or fewer pairs"
            )
        keys = np.array(draws.part().different(half, k))
        values = np.array(draws.part().different(len(tokens) - half, k))
        gaps = _gaps(draws.part(), (length + 1 - len(start) - 2 * k) // 2, k)
        others, filling = draws.part(), draws.part()
        shown = values
        if request.ablated:
            shifts = [1 + others.below(len(tokens) - half - 1) for _ in range(k)]
            shown = (values + shifts) % (len(tokens) - half)
        filler = np.delete(tokens, keys)
        rest = filler[filling.tokens(len(filler), length + 1 - len(start) - 2 * k)]
        rest[2 * gaps], rest[2 * gaps + 1] = tokens[keys], tokens[half + values]
        pairs = np.stack([tokens[keys], tokens[half + shown]], axis=1).ravel()
        answers = np.full(length, -1, np.int32)
        answers[len(start) + 2 * k + 2 * gaps] = np.arange(k)
        return Sample(np.concatenate([start, pairs, rest]).astype(np.int32), answers)


def _gaps(draws: Draws, places: int, count: int) -> Int64[np.ndarray, " count"]:
    """`count` different numbers below `places`, small ones much more often."""
    weights = np.arange(1, places + 1) ** (_POWER - 1)
    gaps = np.zeros(count, np.int64)
    for number in range(count):
        cumulative = weights.cumsum()
        drawn = draws.fraction() * cumulative[-1]
        gaps[number] = np.searchsorted(cumulative, drawn, side="right")
        weights[gaps[number]] = 0
    return gaps
