"""Schema of the continuation of a text."""

from typing import Annotated

from pydantic import Field, model_validator

from rope_jax.config.entries import AnyEntry, TrainedEntry
from rope_jax.config.types import Frozen, Length, ListOf, PositiveInt, Seed, Share, Step


class GenerateConfig(Frozen):
    """How a run continues a text, which is read as the beginning of a window of n tokens."""

    prompt: str | None = Field(None, description="text to continue, as it stands; null: file")
    file: str = Field("-", description="file of the prompt, without its last newline; -: stdin")
    chat: bool | None = Field(
        None, description="whether the prompt is a user's message; null: if there is a template"
    )
    strategy: AnyEntry = Field(
        default_factory=TrainedEntry, description="an entry of a sweep's scalings, or a fit's file"
    )
    length: Length | None = Field(
        None, description="n, which auto factors follow; null: the window, or more if needed"
    )
    max_new_tokens: PositiveInt = Field(256, description="most tokens of the continuation")
    temperature: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="divides logits; 0: the likeliest token (greedy)"
    )
    top_k: PositiveInt | None = Field(None, description="draw from the k likeliest; null: from all")
    top_p: Share = Field(1.0, description="draw from the likeliest, which add up to p (nucleus)")
    seed: Seed = Field(0, description="of the draws")
    stop: ListOf[Annotated[str, Field(min_length=1)]] = Field(
        (), description="texts before which the continuation ends"
    )
    step: Step = None

    @model_validator(mode="after")
    def _has_one_prompt(self) -> "GenerateConfig":
        if self.prompt is not None and "file" in self.model_fields_set:
            raise ValueError("prompt: file is given, too; leave out one of them")
        return self
