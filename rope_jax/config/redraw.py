"""Schema of drawing a sweep's figures again. Imports no jax."""

from pydantic import Field

from rope_jax.config.presentation import FigureWidth
from rope_jax.config.types import Frozen, PathText, PositiveInt


class RedrawConfig(Frozen):
    """Config of scripts/plot_sweep.py."""

    figure_width: FigureWidth = Field(
        "page",
        description="width of the figures: a column of a paper, 3.3 inches, or its page, 6.8",
    )
    output: PathText | None = Field(
        None,
        description="curve: the file to write, .png; .pdf and .svg are written beside it; null: "
        "curve.png beside the results",
    )
    window: PositiveInt | None = Field(
        None,
        description="training window, for a .csv without a summary.json; null: what its automatic "
        "factors say",
    )
