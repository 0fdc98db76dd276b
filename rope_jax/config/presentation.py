"""Schema of how results are shown. Imports no jax."""

from typing import Literal

from pydantic import Field

from rope_jax.config.types import Frozen

Show = Literal["perplexity", "nats", "bits_per_byte"]
FigureWidth = Literal["column", "page"]


class Presentation(Frozen):
    """How tables and figures show what was measured; no measurement depends on it."""

    show: Show = Field(
        "perplexity",
        description="what tables list: perplexity, nats per token, or bits per byte",
    )
    figure_width: FigureWidth = Field(
        "page",
        description="width of the figures: a column of a paper, 3.3 inches, or its page, 6.8",
    )
