"""A comparison or a sweep as Markdown, LaTeX and CSV; a comparison's files, written together."""

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.comparison.groups import Sweep, describe_settings
from rope_jax.errors import UserError, file_errors
from rope_jax.extras import install_line, is_installed
from rope_jax.plots.saving import save_figure
from rope_jax.report import measured
from rope_jax.report.figure import draw_comparison
from rope_jax.report.page import PAGE, format_page
from rope_jax.report.table import (
    Table,
    escape_markdown,
    format_latex,
    format_markdown,
    latex_comments,
)
from rope_jax.report.tasks import effective_tables, task_tables
from rope_jax.results.files import SweepTables, format_csv
from rope_jax.sealed import write_text

SOURCES = "comparison.json"
_FIGURES = ("comparison.png", "comparison.pdf", "comparison.svg")
FILES = (*_FIGURES, *(PAGE, "comparison.md", "comparison.tex", "comparison.csv", SOURCES))
# The gain is minus the loss above truncation of the same runs, a sign that scripts rely on.
_DIFFERENCES = ("difference", "gain", "from_first", "above_truncation")
_COLUMNS = (
    *("group", "marked", "runs", "seeds", "name", "scaling", "auto", "step", "window"),
    *("map", "factor", "protocol", "length", "first_position", "last_position", "nll", "ci_low"),
    *("ci_high", "ppl", "bpb", "bpb_low", "bpb_high", "tokens", "documents", "units"),
    *("nll_by_seed", *(name + end for name in _DIFFERENCES for end in ("", "_low", "_high"))),
    "settings",
)


def results_texts(comparison: Comparison, sweep: SweepTables) -> tuple[str, str]:
    """Return results.md and results.tex: a table by protocol and task of the newest checkpoint."""
    newest, tables = sweep.checkpoints[0], task_tables(sweep, comparison.how.labels)
    title = f"{newest.run}, step {newest.step}"
    markdown = _markdown(title, comparison, *_tables(comparison), *tables)
    return markdown, "\n".join([comparison_latex(comparison), *map(format_latex, tables)])


def _markdown(title: str, comparison: Comparison, *tables: Table) -> str:
    notes = (f"> {escape_markdown(note)}\n" for note in comparison.notes)
    return "\n".join([f"# {escape_markdown(title)}\n", *notes, *map(format_markdown, tables)])


def _tables(comparison: Comparison) -> Iterator[Table]:
    """Yield the tables by protocol, and after each the differences that are known."""
    for protocol in comparison.protocols:
        yield measured.measured_table(comparison, protocol)
        yield from measured.difference_tables(comparison, protocol)


def comparison_markdown(comparison: Comparison) -> str:
    """Return notes, sources, and tables by protocol of each group's newest checkpoint."""
    tables = *_tables(comparison), *effective_tables(comparison.sweeps)
    sources = measured.sources_table(comparison)
    return _markdown(measured.describe_groups(comparison), comparison, sources, *tables)


def comparison_latex(comparison: Comparison) -> str:
    """Return notes as comments, and a tabular environment per table by protocol, for a paper."""
    notes = "".join(f"{line}\n" for line in latex_comments(*comparison.notes))
    return "\n".join([*filter(None, [notes]), *map(format_latex, _tables(comparison))])


def comparison_csv(comparison: Comparison) -> str:
    """Return one row per point of every checkpoint; nll, differences and gain in nats per token."""
    rows = [_csv_row(curve, point) for curve in comparison.curves for point in curve.points]
    return format_csv(_COLUMNS, rows)


def _csv_row(curve: Curve, point: Point) -> list[Any]:
    sweeps = curve.group.sweeps_at(curve.step)
    cells = vars(curve) | {
        "group": curve.group.label,
        "name": curve.entry,
        "marked": curve.group.marked,
        "runs": " ".join(sweep.run for sweep in sweeps),
        "seeds": " ".join(str(sweep.seed) for sweep in sweeps),
        "settings": describe_settings(curve.group.settings, briefly=False),
        **vars(point),
        "nll_by_seed": " ".join(map(repr, point.nll_by_seed)),
    }
    for name in _DIFFERENCES:
        ends = getattr(point, name) or (None,) * 3
        cells |= zip((name, f"{name}_low", f"{name}_high"), ends, strict=True)
    return [cells[column] for column in _COLUMNS]


def check_output(folder: Path, sweeps: Sequence[Sweep], *, replace: bool) -> bool:
    """Return whether `folder` holds a comparison, which these sweeps' comparison may replace.

    UserError: it is a comparison of other sweeps and `replace` is false, or `folder` is a file.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UserError(f"output: {folder} is a file; name a folder")
    if not any(os.path.lexists(folder / name) for name in FILES):
        return False
    try:
        known = set(json.loads((folder / SOURCES).read_bytes())["sweeps"])
    except (OSError, ValueError, LookupError, TypeError):
        known = set()
    if not replace and known != set(_sources(folder, sweeps)):
        raise UserError(
            f"output: {folder} already holds a comparison of other sweeps; name another folder "
            "with output=, or replace it with replace=true"
        )
    return True


def _sources(folder: Path, sweeps: Sequence[Sweep]) -> list[str]:
    """Return each sweep's path from `folder`: both may have been moved together."""
    start = os.path.realpath(folder)
    return [os.path.relpath(os.path.realpath(sweep.folder), start) for sweep in sweeps]


def write_comparison(folder: Path, comparison: Comparison) -> list[str]:
    """Write `FILES` and return their names.

    Without the extra `page`, all but the page, of which an old one is removed.
    """
    texts = {
        "comparison.csv": comparison_csv(comparison),
        "comparison.md": comparison_markdown(comparison),
        "comparison.tex": comparison_latex(comparison),
        SOURCES: json.dumps({"sweeps": _sources(folder, comparison.sweeps)}, indent=2) + "\n",
    }
    if is_installed("plotly"):
        texts[PAGE] = format_page(comparison)
    figure = draw_comparison(comparison)
    with file_errors(folder, "written", "name another folder with output="):
        folder.mkdir(parents=True, exist_ok=True)
        if PAGE not in texts:
            (folder / PAGE).unlink(missing_ok=True)
        for name, text in texts.items():
            write_text(folder / name, text)
        save_figure(figure, folder / _FIGURES[0])
    return [name for name in FILES if name in texts or name in _FIGURES]


def page_line(folder: Path) -> str:
    """Return a line of shell that shows a comparison's page, or installs what writes it."""
    page = folder / PAGE
    if not page.exists():
        return f"{install_line('page')}  # to write {PAGE}"
    return f"python -m webbrowser {shlex.quote(page.resolve().as_uri())}"
