"""Schema of an extension: how long a model is to read, on which texts, in how much time."""

from pydantic import Field

from rope_jax.config.data import DataConfig
from rope_jax.config.entries import Scalings
from rope_jax.config.fit import FitConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.types import Frozen, Length, PositiveFloat


class ExtendConfig(Frozen):
    """A model that is to read longer texts: measured, and written for a runtime."""

    length: Length = Field(description="LENGTH, tokens that the model is to read")
    data: DataConfig | None = Field(None, description="texts, as in a sweep; null: the run's")
    minutes: PositiveFloat = Field(60.0, description="time for everything; decides how many texts")
    scalings: Scalings | None = Field(
        None, description="candidates, auto factors fixed at LENGTH; null: those of runtimes"
    )
    fit: bool | None = Field(
        None, description="whether frequencies and m are fitted as well; null: if time allows"
    )
    export: bool | None = Field(
        None, description="whether the model is written; null: if it is below truncation"
    )
    out: str | None = Field(
        None, description="folder or GGUF file of the model; null: the run's name and LENGTH"
    )


class ExtendPlan(Frozen):
    """What an extension does; decided once, so that the same command resumes it."""

    asked: ExtendConfig
    screening: SweepConfig | None = Field(None, description="leaves the best candidate alone")
    sweep: SweepConfig
    fit: FitConfig | None = Field(None, description="without its start, the best formula")
