"""The figures of a sweep: its newest checkpoint, and how its curves evolve in training."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from rope_jax.comparison.curves import compare_checkpoints
from rope_jax.comparison.sweep_files import SweepFiles, read_results
from rope_jax.config.presentation import FigureWidth, RedrawConfig
from rope_jax.errors import UserError
from rope_jax.plots.saving import figure_files, save_output
from rope_jax.plots.style import MARKERS, LineStyle
from rope_jax.protocols import BASELINE
from rope_jax.report.curves import Plan, draw_plan
from rope_jax.report.figure import draw_run
from rope_jax.report.text import units_text
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary
from rope_jax.rope.files import read_limited

# With more checkpoints than this, the legend names evenly spaced ones.
_MOST_STEPS_IN_LEGEND = 12
_MOST_BYTES = 2**26
_SUMMARY = "summary.json"


def draw_sweep(
    rows: Sequence[Row], checkpoints: Sequence[CheckpointSummary], *, width: FigureWidth
) -> dict[str, Figure]:
    """Return the figures of a sweep by file name: curve.png, and steps.png of several checkpoints.

    rows: of all checkpoints. checkpoints: the newest first.
    """
    newest = checkpoints[0]
    of_newest = [row for row in rows if row.step == newest.step]
    split = of_newest[0].split
    scored = units_text(of_newest[0].units, of_newest[0].documents)
    trained = f"trained at {newest.window:,} tokens"
    figures: dict[str, Figure] = {
        "curve.png": draw_run(
            of_newest,
            newest,
            title=f"{newest.run}, step {newest.step}: {trained}; {split} split, {scored}",
            width=width,
        )
    }
    if len(checkpoints) > 1:
        figures["steps.png"] = draw_checkpoints(
            rows,
            checkpoints,
            title=f"{newest.run}, by training step; {split} split, {scored}",
            width=width,
        )
    return figures


def draw_checkpoints(
    rows: Sequence[Row],
    checkpoints: Sequence[CheckpointSummary],
    *,
    title: str,
    width: FigureWidth = "page",
) -> Figure:
    """Draw how curves evolve in training: one line per checkpoint, dark to light.

    Each scaling has a panel for each protocol; each protocol starts a new row of panels.
    """
    curves = sorted(compare_checkpoints(rows, checkpoints).curves, key=lambda curve: curve.step)
    steps = sorted({curve.step for curve in curves})
    # the lightest colours of the map are too faint on white
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(steps)))
    styles = {
        step: LineStyle(to_hex(colour), MARKERS[place % len(MARKERS)], linewidth=1.0)
        for place, (step, colour) in enumerate(zip(steps, colours, strict=True))
    }
    chosen = np.linspace(0, len(steps) - 1, min(len(steps), _MOST_STEPS_IN_LEGEND))
    plan = Plan(
        key={curve: curve.name for curve in curves},
        styles={curve: styles[curve.step] for curve in curves},
        legend={f"step {steps[i]:,}": styles[steps[i]] for i in chosen.round().astype(int)},
        has_intervals=False,
    )
    return draw_plan(plan, [], title=title, width=width)


def redraw(path: Path, config: RedrawConfig) -> list[Path]:
    """Draw the figures of a sweep's folder or of a table like results.csv; return the files.

    The windows are those of summary.json, or, of a table without one, `config.window`.
    """
    is_folder = path.is_dir()
    folder = path if is_folder else path.parent
    has_summary = is_folder or (path.name == "results.csv" and (folder / _SUMMARY).exists())
    if has_summary and config.window is not None:
        raise UserError(
            f"window: {folder / _SUMMARY} says at which window the model was trained; leave window "
            "out"
        )
    if is_folder:
        rows = SweepFiles(folder).rows()
    else:
        try:
            content = read_limited(path, _MOST_BYTES)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        # no figure needs these
        rows = read_results(path, content, dict.fromkeys(("corpus", "bos", "targets"), ""))
    if has_summary:
        steps = {row.step for row in rows}
        found, _ = SweepFiles(folder).summary()
        checkpoints = [checkpoint for checkpoint in found if checkpoint.step in steps]
        if not checkpoints:
            raise UserError(f"{folder / _SUMMARY}: names no step of the results; sweep again")
    else:
        checkpoints = _checkpoints(path, rows, config.window)
    place = folder / "curve.png"
    if config.output is not None:
        place = Path(config.output)
        if place.suffix != ".png":
            raise UserError(f"output: {place} should end in .png")
    written: list[Path] = []
    for name, figure in draw_sweep(rows, checkpoints, width=config.figure_width).items():
        beside = "steps.png" if place.name == "curve.png" else f"{place.stem}-steps.png"
        path = place if name == "curve.png" else place.with_name(beside)
        save_output(figure, path)
        written += figure_files(path)
    return written


def _checkpoints(path: Path, rows: Sequence[Row], window: int | None) -> list[CheckpointSummary]:
    if window is None:
        # an automatic factor is the length over the window
        found = {
            round(row.length / row.factor)
            for row in rows
            if row.auto and row.factor is not None and math.isfinite(row.factor) and row.factor > 1
        }
        if len(found) != 1:
            raise UserError(
                f"window: {path} does not say at which window the model was trained; give it, such "
                "as window=256"
            )
        (window,) = found
    at_window = {
        row.step: row.nll
        for row in reversed(rows)
        if (row.name, row.protocol, row.length) == ("trained", BASELINE, window)
        and math.isfinite(row.nll)
    }
    steps = sorted({row.step for row in rows}, reverse=True)
    return [CheckpointSummary(rows[0].run, step, window, at_window.get(step)) for step in steps]
