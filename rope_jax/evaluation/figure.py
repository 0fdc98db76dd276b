"""A sweep's results as a figure."""

from rope_jax.evaluation.frame import NO_ORIGIN
from rope_jax.evaluation.results import rows
from rope_jax.evaluation.sweep import SweepResult
from rope_jax.plots.curves import draw_curves
from rope_jax.plots.figure import ShownFigure


def results_figure(result: SweepResult, title: str) -> ShownFigure:
    """Draw perplexity over context length, with truncation to the window if it was measured."""
    baseline = result.baseline
    return draw_curves(
        rows(result, NO_ORIGIN),
        window=result.window,
        truncation=None if baseline is None else baseline.sums.mean(),
        title=title,
        width=result.config.figure_width,
    )
