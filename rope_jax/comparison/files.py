"""What a comparison leaves in its folder, once all of it is there."""

import tempfile
from pathlib import Path

from rope_jax.comparison.curves import Comparison
from rope_jax.comparison.figure import figure
from rope_jax.comparison.page import page
from rope_jax.comparison.report import markdown, tidy
from rope_jax.errors import UserError


def leave(folder: Path, comparison: Comparison) -> None:
    """comparison.png, .html, .md and .csv. UserError where they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as temporary:
            new = Path(temporary)
            (new / "comparison.csv").write_text(tidy(comparison), encoding="utf-8")
            (new / "comparison.md").write_text(markdown(comparison), encoding="utf-8")
            (new / "comparison.html").write_text(page(comparison), encoding="utf-8")
            figure(new / "comparison.png", comparison)
            for path in sorted(new.iterdir()):
                path.replace(folder / path.name)
    except OSError as error:
        place = error.filename2 or folder
        raise UserError(f"output: {place} cannot be written ({error.strerror})") from None
