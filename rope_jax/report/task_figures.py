"""The figures of a sweep's tasks, by file name."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from rope_jax.config.presentation import FigureWidth
from rope_jax.plots.tasks import draw_distances, draw_heat
from rope_jax.report.text import effective_text
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import TaskRow


def draw_tasks(
    rows: Sequence[TaskRow],
    checkpoint: CheckpointSummary,
    *,
    width: FigureWidth,
) -> dict[str, Figure]:
    """Return a figure for each task: over distance where it has one, else by length and depth.

    rows: of this checkpoint.
    """
    figures: dict[str, Figure] = {}
    for task in dict.fromkeys(row.task for row in rows):
        own = [row for row in rows if row.task == task]
        title = (
            f"{task}: {checkpoint.run}, step {checkpoint.step}, trained at {checkpoint.window:,} "
            f"tokens; {own[0].split} split, {own[0].samples:,} samples"
        )
        if own[0].distance is not None or task not in checkpoint.tasks:
            figure = draw_distances(
                own,
                window=checkpoint.window,
                borders=checkpoint.borders,
                title=title,
                width=width,
            )
        else:
            found = checkpoint.tasks[task]
            effective = {name: effective_text(*found[name].effective) for name in found}
            figure = draw_heat(
                own, window=checkpoint.window, effective=effective, title=title, width=width
            )
        figures[f"{task}.png"] = figure
    return figures
