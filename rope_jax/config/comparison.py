"""What can be configured of a comparison. Imports no jax."""

from pydantic import Field

from rope_jax.config.types import FolderName, Frozen, PathText, PositiveFloat, PositiveInt, Seed


class CompareConfig(Frozen):
    """The results of several sweeps, overlaid."""

    sweep: FolderName | None = Field(
        None,
        description="name of the sweep to take from every run; null: the one that all runs have, "
        "or all sweeps",
    )
    output: PathText = Field("comparison", description="folder to write to")
    force: bool = Field(
        False,
        description="draw results that are not comparable anyway, marked as such in every output",
    )
    tolerance: PositiveFloat = Field(
        0.02,
        description="usable length: how many nats above the value at the window still pass",
    )
    resamples: PositiveInt = Field(2000, description="bootstrap resamples of the documents")
    seed: Seed = Field(0, description="seed of the bootstrap")
