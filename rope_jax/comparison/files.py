"""The files of a comparison, written together."""

import os
from contextlib import ExitStack
from pathlib import Path

from rope_jax.comparison.curves import Comparison
from rope_jax.comparison.figure import draw_comparison
from rope_jax.comparison.page import format_page
from rope_jax.comparison.points_csv import format_csv
from rope_jax.comparison.report import format_markdown
from rope_jax.comparison.sweeps import readable_path
from rope_jax.errors import UserError
from rope_jax.plots.saving import save_figure
from rope_jax.runs.files import replacing

FILES = ("comparison.png", "comparison.html", "comparison.md", "comparison.csv")


def check_output(folder: Path) -> None:
    """Raise a UserError if `folder` is a file or an impossible path."""
    try:
        folder.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(
            f"output: {readable_path(folder)} cannot be written ({error.strerror})"
        ) from None
    if not os.path.isdir(folder):
        raise UserError(f"output: {readable_path(folder)} is a file; name a folder")


def write_comparison(folder: Path, comparison: Comparison) -> None:
    """Write all of `FILES`, or none if one cannot be written."""
    texts = {
        "comparison.csv": format_csv(comparison),
        "comparison.md": format_markdown(comparison),
        "comparison.html": format_page(comparison),
    }
    figure = draw_comparison(comparison)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            temporary = {name: stack.enter_context(replacing(folder / name)) for name in FILES}
            for name, text in texts.items():
                temporary[name].write_text(text, encoding="utf-8")
            save_figure(figure, temporary["comparison.png"])
    except OSError as error:
        place = readable_path(Path(error.filename2 or folder))
        raise UserError(f"output: {place} cannot be written ({error.strerror})") from None
