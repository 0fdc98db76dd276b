"""Schemas of how results are shown, compared and drawn again."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from rope_jax.config.types import FolderName, Frozen, Resamples, Seed, Tolerance
from rope_jax.rope.settings import single_error

Show = Literal["perplexity", "nats", "bits_per_byte", "above_truncation"]
FigureWidth = Literal["column", "page"]
Color = Annotated[
    Annotated[str, Field(pattern=r"^#[0-9A-Fa-f]{6}$")], single_error("should be like '#D55E00'")
]


class FigureConfig(Frozen):
    """What figures have besides their curves."""

    title: bool = Field(True, description="false: none, where a paper's caption says it")


class Presentation(Frozen):
    """How tables and figures show what was measured; no measurement depends on it."""

    show: Show = Field("perplexity", description="in tables; above_truncation: in figures as well")
    figure_width: FigureWidth = Field("page", description="column: 3.3 inches; page: 6.8")
    figure: FigureConfig = FigureConfig()
    labels: dict[str, str] = Field({}, description="names to show instead: {yarn-auto: YaRN}")
    colors: dict[str, Color] = Field({}, description='of curves and runs: {yarn-auto: "#D55E00"}')

    def check_names(self, curves: Iterable[str], runs: Iterable[str] = ()) -> None:
        """ValueError if labels or colors are of other names."""
        known = dict.fromkeys((*curves, *runs))
        for key, chosen in (("labels", self.labels), ("colors", self.colors)):
            if unknown := [name for name in chosen if name not in known]:
                there = ", ".join(known)
                raise ValueError(f"{key}: {unknown[0]} is no curve or run; there are {there}")


class CompareConfig(Presentation):
    """The results of several sweeps, overlaid."""

    sweep: FolderName | None = Field(None, description="of each run; null: what all share, or all")
    output: str = Field("comparison", description="folder to write to")
    force: bool = Field(False, description="draw incomparable results, too, marked as such")
    replace: bool = Field(False, description="replace a comparison of other sweeps in `output`")
    tolerance: Tolerance = 0.02
    resamples: Resamples = 2000
    seed: Seed = Field(0, description="seed of the bootstrap")
