"""Following the documentation's recipes to the letter in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What `make` would install: present, so that it runs the commands alone.
_STAMPS = (".created", ".runtime", ".dev")


def copy_repository(copy: Path) -> None:
    """Copy the files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():  # unless deleted but not yet committed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)


def add_environment(copy: Path) -> None:
    """Give a copy a .venv with the packages of this Python, which `make` takes for complete."""
    environment = copy / ".venv"
    environment.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (environment / name).symlink_to(Path(sys.prefix) / name)
    for name in _STAMPS:  # last, because they have to be newer than the lock files
        (environment / name).touch()


def replace_once(path: Path, old: str, new: str) -> None:
    """Replace a text that must occur exactly once in a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name}: {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def add_import(path: Path, line: str) -> None:
    """Add an import before the others of a module, where it need not belong."""
    text = path.read_text(encoding="utf-8")
    first = re.search(r"^from ", text, re.MULTILINE)
    assert first is not None, path
    path.write_text(f"{text[: first.start()]}{line}\n{text[first.start() :]}", encoding="utf-8")


def commands_in(recipe: str) -> list[str]:
    """Return the shell commands of a recipe: the lines that are indented by four spaces."""
    prose = re.sub(r"```.*?```", "", recipe, flags=re.DOTALL)
    return [line.strip() for line in prose.splitlines() if line.startswith("    ")]


def run_command(command: str, copy: Path) -> str:
    """Run a line of shell in the copy as its reader would; return what it prints.

    Skips the test where there is no `make`.
    """
    if command.startswith("make "):
        if shutil.which("make") is None:
            pytest.skip("the recipe calls make, which is not here")
        # It must not install anything through the links of `add_environment`.
        assert subprocess.run(["make", "-q", ".venv/.dev"], cwd=copy).returncode == 0
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def train_small_demo(copy: Path, *words: str) -> None:
    """Train a tiny model as runs/demo of the copy, on a few texts. words: further overrides."""
    (copy / "texts").mkdir(exist_ok=True)
    for index in range(10):
        (copy / "texts" / f"{index}.txt").write_text("rope turns slow\nfast " * (60 + index))
    (copy / "tiny.yaml").write_text(
        "name: demo\n"
        "model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, "
        "num_attention_heads: 2}\n"
        "stages: [{steps: 2, seq_len: 16, batch_size: 4}]\n"
        "optim: {warmup_steps: 1}\n"
        "data: {type: text, files: [texts/*], test_fraction: 0.4, validation_fraction: 0.2, "
        "cache_dir: cache}\n"
    )
    run_command(".venv/bin/python train.py tiny.yaml " + " ".join(words), copy)
