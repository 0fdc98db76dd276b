"""Files that are there as a whole or not at all."""

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
