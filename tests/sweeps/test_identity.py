"""What an unfinished sweep may be resumed with."""

import shutil
from pathlib import Path

import pytest

import rope_jax
from rope_jax.errors import UserError
from rope_jax.sweeps import code
from rope_jax.sweeps.code import hash_sources

PACKAGE = Path(rope_jax.__file__).parent


@pytest.fixture
def package(tmp_path) -> Path:
    return shutil.copytree(PACKAGE, tmp_path / "package", ignore=lambda *_: ["__pycache__"])


def changed(package: Path, name: str) -> bool:
    """Whether an edit of a file changes the hash."""
    before = hash_sources(package)
    with (package / name).open("a") as file:
        file.write("\n# edited\n")
    return before != hash_sources(package)


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


@pytest.mark.parametrize("name", ["report/redraw.py", "console.py", "comparison/curves.py"])
def test_code_that_shows_is_not(package, name):
    assert not changed(package, name)


def test_the_hash_does_not_depend_on_the_place(package):
    assert hash_sources(package) == hash_sources(PACKAGE)


def test_code_that_is_edited_while_a_command_starts_is_noticed(package, monkeypatch):
    monkeypatch.setattr(code, "_PACKAGE", package)
    code.code_hash.cache_clear()
    try:
        before = code.code_hash()
        assert changed(package, "model/decoder.py")
        assert code.code_hash() == before  # what was imported is not what is there now
        with pytest.raises(UserError, match="was changed while this command started"):
            code.check_code()
    finally:
        code.code_hash.cache_clear()
