"""Schemas of how results are shown, compared and drawn again. Imports no jax."""

from typing import Literal

from pydantic import Field

from rope_jax.config.types import (
    FolderName,
    Frozen,
    PositiveInt,
    Resamples,
    Seed,
    Tolerance,
)

Show = Literal["perplexity", "nats", "bits_per_byte"]
FigureWidth = Literal["column", "page"]


_WIDTH: FigureWidth = Field(
    "page", description="width of the figures: a column of a paper, 3.3 inches, or its page, 6.8"
)


class Presentation(Frozen):
    """How tables and figures show what was measured; no measurement depends on it."""

    show: Show = Field("perplexity", description="tables list perplexity, nats or bits per byte")
    figure_width: FigureWidth = _WIDTH


class CompareConfig(Presentation):
    """The results of several sweeps, overlaid."""

    sweep: FolderName | None = Field(None, description="of each run; null: what all share, or all")
    output: str = Field("comparison", description="folder to write to")
    force: bool = Field(False, description="draw incomparable results, too, marked as such")
    replace: bool = Field(False, description="replace a comparison of other sweeps in `output`")
    tolerance: Tolerance = 0.02
    resamples: Resamples = 2000
    seed: Seed = Field(0, description="seed of the bootstrap")


class RedrawConfig(Frozen):
    """Config of scripts/plot_sweep.py."""

    figure_width: FigureWidth = _WIDTH
    output: str | None = Field(
        None, description="the .png, beside .pdf and .svg; null: curve.png in the folder"
    )
    window: PositiveInt | None = Field(
        None, description="training window; needed if no summary.json has it"
    )
