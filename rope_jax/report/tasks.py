"""What is shown of tasks: tables, figures, and the heat maps of a comparison's page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

from rope_jax.comparison.groups import Sweep
from rope_jax.config.presentation import FigureWidth, Presentation
from rope_jax.plots import panels, style
from rope_jax.plots.style import LineStyle
from rope_jax.report.measured import effective_text, loss_cells, usable_text
from rope_jax.report.table import Cell, Line, Table
from rope_jax.results.files import SweepTables
from rope_jax.results.statistics import Estimate
from rope_jax.results.summary import CheckpointSummary
from rope_jax.results.tasks import TaskRow, ablated_shares

# Perceptually uniform, also in grey and for colour-blind readers: dark is wrong, light is exact.
_COLOURS = "viridis"
ABLATED = "taken out"
_COLUMNS: Mapping[FigureWidth, int] = {"column": 2, "page": 4}
_ROW_HEIGHT = 0.17  # inches, of a depth
_NUMBER_SIZE = 5.5  # points
_LABELS = {"nats": "nats per token", "exact": "exact (%)"}

# A panel's cells by length, by the label of a row, from the top.
Rows = dict[str, dict[int, TaskRow]]


def task_tables(sweep: SweepTables, labels: Mapping[str, str]) -> list[Table]:
    """Return a table per task of the newest checkpoint: exact answers in %, or the perplexity.

    labels: what to call curves instead of their names.
    """
    checkpoint = sweep.checkpoints[0]
    control = ablated_shares(sweep.samples, checkpoint.step)
    rows = [row for row in sweep.task_rows if row.step == checkpoint.step]
    made = []
    for task in dict.fromkeys(row.task for row in rows):
        of_task = [row for row in rows if row.task == task]
        if task in checkpoint.tasks:
            made.append(_exact_table(of_task, checkpoint, control.get(task, {}), labels))
        else:
            made.append(_perplexity_table(of_task, labels))
    return made


def _exact_table(
    rows: Sequence[TaskRow],
    checkpoint: CheckpointSummary,
    control: Mapping[int, float],
    labels: Mapping[str, str],
) -> Table:
    by_name = checkpoint.tasks[rows[0].task]
    lengths = sorted({n for summary in by_name.values() for n in summary.exact})
    lines = []
    for name, summary in by_name.items():
        # an interval is often one-sided, so both ends are shown
        shares = [tuple(map(share_text, summary.exact[n])) for n in lengths]
        cells = [Cell(value, f"[{low}, {high}]") for value, low, high in shares]
        curve = checkpoint.curves.get(name)
        usable = usable_text(None if curve is None else curve.usable)
        effective = effective_text(*summary.effective)
        label = labels.get(name, name)
        lines.append(Line((label,), [*cells, Cell(effective), Cell(usable)]))
    below = {ABLATED: [share_text(control[n]) if n in control else "" for n in lengths]}
    chance = next((row.chance for row in rows if row.chance is not None), None)
    if chance is not None:
        below["chance"] = [share_text(chance)] * len(lengths)
    threshold = next(iter(by_name.values())).threshold
    return Table(
        title=rows[0].task,
        about="exact answers in %, over all depths, by context length",
        labels=("scaling",),
        columns=(*(f"{n:,}" for n in lengths), "effective", "usable"),
        lines=lines,
        below=[Line((name,), [*map(Cell, values)]) for name, values in below.items()],
        intervals="[ ] the 95% interval over samples",
        notes=(
            "taken out: the same without what is asked for, the largest of all rows",
            "effective: the longest length up to which at least "
            f"{100 * threshold:g}% are exact, with its interval where the ends differ",
        ),
    )


def _perplexity_table(rows: Sequence[TaskRow], labels: Mapping[str, str]) -> Table:
    lengths = sorted({row.length for row in rows})
    estimates = {(r.name, r.length): Estimate(r.value, r.ci_low, r.ci_high) for r in rows}
    names = list(dict.fromkeys(row.name for row in rows))
    columns = [loss_cells(estimates.get((name, n)) for name in names) for n in lengths]
    return Table(
        title=rows[0].task,
        about=f"perplexity of {rows[0].tokens:,} key tokens, by context length",
        labels=("scaling",),
        columns=tuple(f"{n:,}" for n in lengths),
        lines=[
            Line((labels.get(name, name),), cells)
            for name, *cells in zip(names, *columns, strict=True)
        ],
        intervals=f"± half of the 95% interval over {rows[0].samples:,} blocks of key tokens",
    )


def effective_tables(sweeps: Sequence[Sweep]) -> Iterator[Table]:
    """Yield a table of effective lengths for each sweep with tasks."""
    for sweep in sweeps:
        names = dict.fromkeys(name for by_name in sweep.effective.values() for name in by_name)
        lines = []
        for name in names:
            lengths = [by_name.get(name) for by_name in sweep.effective.values()]
            cells = [Cell("" if one is None else effective_text(*one)) for one in lengths]
            lines.append(Line((name,), cells))
        if lines:
            about, columns = "effective lengths by task", tuple(sweep.effective)
            yield Table(sweep.label, about, ("scaling",), columns, lines)


def draw_tasks(
    rows: Sequence[TaskRow], checkpoint: CheckpointSummary, how: Presentation
) -> dict[str, Figure]:
    """Draw each task of a checkpoint: over distance if it has one, else by length and depth."""
    figures: dict[str, Figure] = {}
    for task in dict.fromkeys(row.task for row in rows):
        of_task = [row for row in rows if row.task == task]
        title = (
            f"{task}: {checkpoint.run}, step {checkpoint.step}, trained at {checkpoint.window:,} "
            f"tokens; {of_task[0].split} split, {of_task[0].samples:,} samples"
        )
        is_profile = of_task[0].distance is not None or task not in checkpoint.tasks
        draw = draw_distances if is_profile else draw_heat
        figures[f"{task}.png"] = draw(of_task, checkpoint, how, title * how.figure.title)
    return figures


def draw_heat(
    points: Sequence[TaskRow], checkpoint: CheckpointSummary, how: Presentation, title: str
) -> Figure:
    """Draw the share of exact answers of one task by length and depth, one panel per scaling.

    A task without depths has one panel, with a row per scaling. The last row is what remains when
    what is asked for is taken out. A line marks the training window; a length that was not measured
    stays empty.
    """
    exact = [point for point in points if point.metric == "exact"]
    lengths = sorted({point.length for point in exact})
    has_depths = any(point.depth is not None for point in exact)
    gap = "\n" if has_depths else ", "
    labels = {point.name: how.labels.get(point.name, point.name) for point in exact}
    for name, summary in checkpoint.tasks[points[0].task].items():
        labels[name] = f"{labels[name]}{gap}effective: {effective_text(*summary.effective)}"
    shown, inches = heat_panels(exact, labels), style.WIDTHS[how.figure_width]
    columns = min(_COLUMNS[how.figure_width], len(shown))
    trained = sum(length <= checkpoint.window for length in lengths)
    grid: dict[str, Any] = {"extra": 0.95, "title": title, "width": how.figure_width}
    grid["row_height"] = 0.45 + _ROW_HEIGHT * max(map(len, shown.values()))
    with style.figure_style():
        figure, axes = panels.make_grid(len(shown), columns, **grid)
        for number, (axis, (heading, rows)) in enumerate(zip(axes, shown.items(), strict=True)):
            image = _draw_cells(axis, rows, lengths)
            if 0 < trained < len(lengths):
                axis.axvline(trained - 0.5, color="white", linewidth=2.0)
                axis.axvline(trained - 0.5, color=style.NOTE, linewidth=0.8, linestyle="--")
            folded = panels.fold_text(heading, int(15.5 * inches / columns))
            axis.set_title(folded, fontsize=style.SMALL_SIZE)
            panels.label_lowest(axis, "length (tokens)", number, len(shown), columns)
            if number % columns == 0 and has_depths:
                axis.set_ylabel("depth (%)")
        chance = next((point.chance for point in exact if point.chance is not None), None)
        bar = figure.colorbar(image, ax=axes, location="bottom", fraction=0.02, pad=0.01, aspect=40)
        label = "exact (%)" if chance is None else f"exact (%); chance: {100 * chance:.2g}"
        bar.set_label(label, fontsize=style.SMALL_SIZE)
        bar.outline.set_visible(False)
    return figure


def heat_panels(points: Sequence[TaskRow], labels: Mapping[str, str]) -> dict[str, Rows]:
    """Return the rows of each panel by its title: one panel per scaling with a row per depth.

    Without depths it is one panel with a row per scaling. The last row is what was taken out, the
    largest where there are several: none of the scalings should be trusted with less.
    """
    shown: dict[str, Rows] = {}
    has_depths = any(point.depth is not None for point in points)
    names = list(dict.fromkeys(point.name for point in points))
    for point in sorted(points, key=lambda p: (names.index(p.name), p.taken_out, p.depth or 0.0)):
        label = labels[point.name]
        row = f"{100 * (point.depth or 0):g}" if has_depths else label
        rows = shown.setdefault(label if has_depths else "", {})
        cells = rows.setdefault(ABLATED if point.taken_out else row, {})
        other = cells.get(point.length, point)
        cells[point.length] = max(point, other, key=lambda point: point.value)
    for rows in shown.values():
        if ABLATED in rows:
            rows[ABLATED] = rows.pop(ABLATED)
    return shown


def _draw_cells(axis: Axes, rows: Rows, lengths: Sequence[int]) -> AxesImage:
    """Draw a panel's cells, with a number in each."""
    values = np.array(
        [[row[n].value if n in row else math.nan for n in lengths] for row in rows.values()]
    )
    image = axis.imshow(100 * values, cmap=_COLOURS, vmin=0, vmax=100, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if not math.isnan(value):
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": _NUMBER_SIZE}
            look["color"] = "white" if value < 0.6 else "black"
            axis.text(column, row, share_text(value), **look)
    if ABLATED in rows:
        axis.axhline(len(rows) - 1.5, color="white", linewidth=3.0)  # sets the row apart
    tilted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths], **tilted)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.tick_params(length=0)
    axis.spines[["left", "bottom"]].set_visible(False)
    return image


def share_text(share: float) -> str:
    """Return a share in %, such as "97"; only all are "100", and only none are "0"."""
    if 0 < share < 0.01:
        return "<1"
    return ">99" if 0.99 < share < 1 else f"{100 * share:.0f}"


def draw_distances(
    points: Sequence[TaskRow], checkpoint: CheckpointSummary, how: Presentation, title: str
) -> Figure:
    """Draw nats and exact answers over the distance to the token to be found, or the length.

    Dotted: the same with that token taken out. A short line at the top marks the distance from
    which a map changes what is seen.
    """
    borders = checkpoint.borders
    metrics = [metric for metric in _LABELS if any(p.metric == metric for p in points)]
    kinds = {p.name: p.name if p.name == "trained" else p.kind for p in points}
    styles, width = style.assign_styles(kinds, how.colors), how.figure_width
    columns = 1 if width == "column" else len(metrics)
    with style.figure_style():
        figure, axes = panels.make_grid(
            len(metrics), columns, row_height=2.3, title=title, width=width, sharey=False, extra=0.3
        )
        for axis, metric in zip(axes, metrics, strict=True):
            for name, look in styles.items():
                of_curve = [p for p in points if (p.name, p.metric) == (name, metric)]
                _draw_profile(axis, of_curve, look)
                if name in borders:
                    axis.axvline(borders[name], 0.94, 1, color=look.color, linewidth=1.5, zorder=1)
            panels.scale_lengths(
                axis, sorted(set(map(_distance, points))), 0.8 * style.WIDTHS[width] / columns
            )
            panels.mark_windows(axis, [checkpoint.window], with_label=True)
            has_distance = points[0].distance is not None
            axis.set_xlabel("distance (tokens)" if has_distance else "context length (tokens)")
            axis.set_ylabel(_LABELS[metric])
            if metric == "exact":
                axis.set_ylim(-3, 103)
        legend = [
            Line2D([], [], label=how.labels.get(name, name), **vars(look))
            for name, look in styles.items()
        ]
        if any(point.taken_out for point in points):
            legend.append(Line2D([], [], label=ABLATED, color="0.4", linestyle=":"))
        if borders.keys() & styles.keys():
            legend.append(panels.tick_handle("a map begins", "0.4", 1.5))
        panels.add_legend(figure, legend)
    return figure


def _distance(point: TaskRow) -> int:
    return point.length if point.distance is None else point.distance


def _draw_profile(axis: Axes, points: Sequence[TaskRow], look: LineStyle) -> None:
    """Draw a metric of a scaling with its interval; dotted, the same with the token taken out."""
    scale = 100.0 if points and points[0].metric == "exact" else 1.0
    for is_out in (False, True):
        drawn = [point for point in points if point.taken_out == is_out]
        x = [_distance(point) for point in drawn]
        values = np.array([(p.value, p.ci_low, p.ci_high) for p in drawn], float).reshape(-1, 3).T
        # nan leaves a gap
        y, low, high = scale * np.where(np.isfinite(values), values, np.nan)
        if is_out:
            axis.plot(x, y, color=look.color, linestyle=":", linewidth=0.9)
        else:
            axis.plot(x, y, **vars(look))
            axis.fill_between(x, low, high, color=look.color, alpha=style.BAND_OPACITY, linewidth=0)
