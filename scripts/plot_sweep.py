"""Draw the figures of a sweep again, from its folder or from a table like its results.csv.

    python scripts/plot_sweep.py runs/demo/evals/demo figure_width=column
    python scripts/plot_sweep.py docs/figures/demo.csv window=128 output=docs/figures/demo.png

Writes curve.png, .pdf and .svg, and steps.png, .pdf and .svg for several checkpoints.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rope_jax import cli
from rope_jax.errors import UserError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rope_jax.config.presentation import RedrawConfig
    from rope_jax.results.rows import Row
    from rope_jax.results.summary import CheckpointSummary

_MOST_BYTES = 2**26


def main(argv: list[str]) -> None:
    # imported late, so that a signal during the imports is handled like any other
    from rope_jax.config.presentation import RedrawConfig

    parser = cli.parser("SWEEP", "Draw the figures of a sweep again.", RedrawConfig)
    parser.add_argument("sweep", metavar="SWEEP", help="the folder of a sweep, or its results.csv")
    arguments, config = cli.read_config(parser, argv)
    path = Path(arguments.sweep)
    place = (path if path.is_dir() else path.parent) / "curve.png"
    if config.output is not None:
        place = Path(config.output)
    if place.suffix != ".png":
        raise UserError(f"output: {place} should end in .png")
    # imported late: matplotlib takes seconds, and help and config errors should not wait for it
    from rope_jax.comparison.curves import compare_checkpoints
    from rope_jax.config.presentation import Presentation
    from rope_jax.console import plain_console
    from rope_jax.plots.saving import figure_files, save_output
    from rope_jax.report.figure import draw_sweep

    rows, checkpoints = read(path, config)
    shown = Presentation(**config.model_dump(exclude={"output", "window"}))
    written: list[Path] = []
    for name, figure in draw_sweep(compare_checkpoints(rows, checkpoints, shown)).items():
        beside = "steps.png" if place.name == "curve.png" else f"{place.stem}-steps.png"
        file = place if name == "curve.png" else place.with_name(beside)
        save_output(figure, file)
        written += figure_files(file)
    plain_console().print(printable(", ".join(map(str, written))), soft_wrap=True)


def read(path: Path, config: "RedrawConfig") -> "tuple[Sequence[Row], list[CheckpointSummary]]":
    """Return the rows and checkpoints, the newest first, of a sweep's folder or a table.

    The windows are those of summary.json, or, of a table without one, `config.window`.
    """
    from rope_jax.results.files import SweepFiles, read_results
    from rope_jax.sealed import read_limited

    folder = path if path.is_dir() else path.parent
    summary = folder / "summary.json"
    has_summary = path.is_dir() or (path.name == "results.csv" and summary.exists())
    if has_summary and config.window is not None:
        raise UserError(
            f"window: {summary} says at which window the model was trained; leave window out"
        )
    if path.is_dir():
        rows = SweepFiles(folder).rows()
    else:
        try:
            content = read_limited(path, _MOST_BYTES)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        # no figure needs these
        rows = read_results(path, content, dict.fromkeys(("corpus", "bos", "targets"), ""))
    if not has_summary:
        if config.window is None:
            raise UserError(
                f"window: {path} does not say at which window the model was trained; give it, such "
                "as window=256"
            )
        return rows, checkpoints_of(rows, config.window)
    steps = {row.step for row in rows}
    checkpoints = [one for one in SweepFiles(folder).summary()[0] if one.step in steps]
    if not checkpoints:
        raise UserError(f"{summary}: names no step of the results; sweep again")
    return rows, checkpoints


def checkpoints_of(rows: "Sequence[Row]", window: int) -> "list[CheckpointSummary]":
    """Return what a table without a summary says of its checkpoints."""
    from rope_jax.protocols import BASELINE
    from rope_jax.results.summary import CheckpointSummary

    at_window = {
        row.step: row.nll
        for row in reversed(rows)
        if (row.name, row.protocol, row.length) == ("trained", BASELINE, window)
        and math.isfinite(row.nll)
    }
    steps = sorted({row.step for row in rows}, reverse=True)
    return [CheckpointSummary(rows[0].run, step, window, at_window.get(step)) for step in steps]


if __name__ == "__main__":
    cli.run(main)
