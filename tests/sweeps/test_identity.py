"""What an unfinished sweep may be resumed with."""

import shutil
from pathlib import Path

import pytest

import rope_jax
from rope_jax.sweeps.identity import code_hash

PACKAGE = Path(rope_jax.__file__).parent


@pytest.fixture
def package(tmp_path) -> Path:
    return shutil.copytree(PACKAGE, tmp_path / "package", ignore=lambda *_: ["__pycache__"])


def changed(package: Path, name: str) -> bool:
    """Whether an edit of a file changes the hash."""
    before = code_hash.__wrapped__(package)
    with (package / name).open("a") as file:
        file.write("\n# edited\n")
    return before != code_hash.__wrapped__(package)


@pytest.mark.parametrize(
    "name",
    [
        "rope/strategies/by_parts.py",
        "rope/angles.py",
        "attention/xla.py",
        "model/decoder.py",
        "evaluation/plan.py",
        "data/splits.py",
        "config/sweep.py",
        "training/checkpoints.py",
    ],
)
def test_code_that_computes_is_in_the_hash(package, name):
    assert changed(package, name)


@pytest.mark.parametrize("name", ["sweeps/terminal.py", "console.py", "comparison/page.py"])
def test_code_that_shows_is_not(package, name):
    assert not changed(package, name)


def test_the_hash_does_not_depend_on_the_place(package):
    assert code_hash.__wrapped__(package) == code_hash.__wrapped__(PACKAGE)
