"""What a comparison leaves in its folder: each file whole or not at all."""

from pathlib import Path

from rope_jax.comparison.curves import Comparison
from rope_jax.comparison.figure import figure
from rope_jax.comparison.page import page
from rope_jax.comparison.report import markdown, tidy
from rope_jax.errors import UserError
from rope_jax.run_directory import write_text


def leave(folder: Path, comparison: Comparison) -> None:
    """comparison.png, .html, .md and .csv. UserError where they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "comparison.csv", tidy(comparison))
        write_text(folder / "comparison.md", markdown(comparison))
        write_text(folder / "comparison.html", page(comparison))
        figure(folder / "comparison.png", comparison)
    except OSError as error:
        raise UserError(f"output: {folder} cannot be written ({error.strerror})") from None
