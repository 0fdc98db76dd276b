"""What a comparison can be asked for. Imports no jax."""

from pydantic import Field

from rope_jax.config.types import FolderName, Frozen, PathText, PositiveFloat, PositiveInt, Seed


class CompareConfig(Frozen):
    """Results of sweeps, overlaid."""

    sweep: FolderName | None = Field(
        None,
        description="take this sweep of every run; null: the one that all have, or all of them",
    )
    output: PathText = Field("comparison", description="the folder to write to")
    force: bool = Field(
        False,
        description="draw results that cannot be compared all the same, marked in every output",
    )
    tolerance: PositiveFloat = Field(
        0.02, description="usable length: nats above the value at the window that still pass"
    )
    resamples: PositiveInt = Field(2000, description="bootstrap resamples of the documents")
    seed: Seed = Field(0, description="of the resamples")
