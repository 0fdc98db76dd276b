"""Schema of a comparison. Imports no jax."""

from pydantic import Field

from rope_jax.config.presentation import Presentation
from rope_jax.config.types import FolderName, PathText, PositiveFloat, Resamples, Seed


class CompareConfig(Presentation):
    """The results of several sweeps, overlaid."""

    sweep: FolderName | None = Field(
        None,
        description="name of the sweep to take from every run; null: the one sweep that all runs "
        "share, or else all sweeps",
    )
    output: PathText = Field("comparison", description="folder to write to")
    force: bool = Field(
        False,
        description="draw results even if they are not comparable, marked as such in every output",
    )
    replace: bool = Field(
        False, description="replace a comparison of other sweeps in the folder `output`"
    )
    tolerance: PositiveFloat = Field(
        0.02,
        description="usable length: largest rise of the NLL over its value at the window, in nats",
    )
    resamples: Resamples = Field(2000, description="bootstrap resamples of the documents")
    seed: Seed = Field(0, description="seed of the bootstrap")
