"""The files of a comparison, written together, and never over those of another comparison."""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rope_jax.comparison.curves import Comparison
from rope_jax.comparison.sweeps import Sweep, readable_path
from rope_jax.errors import UserError, printable
from rope_jax.plots.saving import write_figure
from rope_jax.report.comparison_figure import draw_comparison
from rope_jax.report.comparison_latex import format_latex
from rope_jax.report.comparison_page import format_page
from rope_jax.report.comparison_points_csv import format_csv
from rope_jax.report.comparison_report import format_markdown
from rope_jax.rope.files import read_limited
from rope_jax.sealed import replacing

SOURCES = "comparison.json"
_FIGURES = ("comparison.png", "comparison.pdf", "comparison.svg")
FILES = (
    *_FIGURES,
    *("comparison.html", "comparison.md", "comparison.tex", "comparison.csv", SOURCES),
)


_MOST_BYTES = 2**24
_MOST_NAMED = 4


def check_output(folder: Path, sweeps: Sequence[Sweep], *, replace: bool) -> bool:
    """Return whether `folder` holds a comparison, which these sweeps' comparison may replace.

    Raises UserError if it is a comparison of other sweeps and `replace` is false, or if `folder` is
    a file or an impossible path.
    """
    try:
        folder.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(
            f"output: {readable_path(folder)} cannot be written ({error.strerror})"
        ) from None
    if not os.path.isdir(folder):
        raise UserError(f"output: {readable_path(folder)} is a file; name a folder")
    if not any(os.path.lexists(folder / name) for name in FILES):
        return False
    there = _read_sources(folder)
    if not replace and (there is None or there.keys() != _sources(folder, sweeps).keys()):
        raise UserError(
            f"output: {readable_path(folder)} already holds a comparison of {_names(there)}; name "
            "another folder with output=, or replace it with replace=true"
        )
    return True


def _sources(folder: Path, sweeps: Sequence[Sweep]) -> dict[str, dict[str, Any]]:
    """Return what a comparison in `folder` is made of: each sweep by its place, seen from there.

    Both may have been moved together.
    """
    start = os.path.realpath(folder)
    return {
        os.path.relpath(os.path.realpath(sweep.folder), start): {
            "run": sweep.run,
            "sweep": sweep.name,
            "seed": sweep.seed,
            "steps": sorted(sweep.windows),
        }
        for sweep in sweeps
    }


def _read_sources(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return what the comparison in `folder` is made of; None if it does not say."""
    try:
        found = json.loads(read_limited(folder / SOURCES, _MOST_BYTES))["sweeps"]
        return {place: {"run": one["run"], "sweep": one["sweep"]} for place, one in found.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def _names(sources: dict[str, dict[str, Any]] | None) -> str:
    """Return the names of a comparison's sweeps for a message."""
    if not sources:
        return f"unknown sweeps (it has no {SOURCES} that can be read)"
    names = [printable(f"{one['run']}/{one['sweep']}")[:80] for one in sources.values()]
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write all of `FILES`, or none if one cannot be written."""
    sweeps = [sweep for group in comparison.groups for sweep in group.sweeps]
    texts = {
        "comparison.csv": format_csv(comparison),
        "comparison.md": format_markdown(comparison),
        "comparison.tex": format_latex(comparison),
        "comparison.html": format_page(comparison),
        SOURCES: json.dumps({"sweeps": _sources(folder, sweeps)}, indent=2) + "\n",
    }
    figure = draw_comparison(comparison)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            temporary = {name: stack.enter_context(replacing(folder / name)) for name in FILES}
            for name, text in texts.items():
                temporary[name].write_text(text, encoding="utf-8")
            for name in _FIGURES:
                write_figure(figure, temporary[name])
    except OSError as error:
        place = readable_path(Path(error.filename2 or folder))
        raise UserError(f"output: {place} cannot be written ({error.strerror})") from None
