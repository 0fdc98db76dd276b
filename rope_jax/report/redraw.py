"""Draw a sweep's figures again from its files, or from its results.csv alone."""

import math
from collections.abc import Sequence
from pathlib import Path

from rope_jax.comparison.sweep_files import SweepFiles, read_results
from rope_jax.config.presentation import RedrawConfig
from rope_jax.errors import UserError
from rope_jax.plots.saving import figure_files, save_figure
from rope_jax.protocols import BASELINE
from rope_jax.report.sweep_figures import draw_sweep
from rope_jax.results.rows import Row
from rope_jax.results.summary import CheckpointSummary
from rope_jax.rope.files import read_limited

_MOST_BYTES = 2**26
_SUMMARY = "summary.json"


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
        rows = read_results(path, content, optional=("corpus", "bos", "targets"))
    if has_summary:
        steps = {row.step for row in rows}
        checkpoints = [
            CheckpointSummary(one.run, one.step, one.window, one.nll_at_window)
            for one in SweepFiles(folder).summaries()
            if one.step in steps
        ]
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
        steps = "steps.png" if place.name == "curve.png" else f"{place.stem}-steps.png"
        path = place if name == "curve.png" else place.with_name(steps)
        try:
            save_figure(figure, path)
        except OSError as error:
            raise UserError(
                f"output: {path} cannot be written ({error.strerror or error})"
            ) from None
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
