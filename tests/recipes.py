"""Following the documentation's recipes in a copy of the repository."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_repository(copy: Path) -> None:
    """Copy the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():  # unless deleted but not yet committed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)


def replace_once(path: Path, old: str, new: str) -> None:
    """Replace a text that must occur exactly once in a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name}: {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def runner(copy: Path) -> Callable[..., str]:
    """Return a function that runs Python in the copy, or in `folder`, and returns its output."""
    environment = os.environ | {"PYTHONPATH": str(copy), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}

    def run(*words: str, folder: Path = copy) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
