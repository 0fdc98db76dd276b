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


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the files that git tracks, beside a .venv that `make` takes for complete."""
    copy = tmp_path / "copy"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():  # unless deleted but not yet committed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    environment = copy / ".venv"
    environment.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (environment / name).symlink_to(Path(sys.prefix) / name)
    for name in _STAMPS:  # last, because they have to be newer than the lock files
        (environment / name).touch()
    return copy


def code_in(page: str) -> list[str]:
    """Return the blocks of Python in a page."""
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def class_in(code: str) -> str:
    """Return the name of the first class in a recipe's code."""
    found = re.search(r"^class (\w+)", code, re.MULTILINE)
    assert found is not None
    return found[1]


def add_class(copy: Path, file: str, code: str, page: str) -> None:
    """Write a recipe's file, and list its class in the registry that the page names."""
    (copy / file).write_text(code, encoding="utf-8")
    name, prose = class_in(code), page.replace("\n", " ")
    found = re.search(rf"Import `{name}` in `(\S+)` and add it to `(\w+)`", prose)
    assert found is not None
    registry, module = copy / found[1], file.removesuffix(".py").replace("/", ".")
    add_import(registry, f"from {module} import {name}")
    text = registry.read_text(encoding="utf-8")
    listed = re.search(rf"^{found[2]}: [^=]* = \((.*?)\)\n", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    replace_once(registry, f"({listed[1]})", f"({listed[1].rstrip().rstrip(',')}, {name})")


def append(path: Path, code: str) -> None:
    """Add a recipe's test at the end of a file."""
    path.write_text(f"{path.read_text(encoding='utf-8')}\n\n{code}", encoding="utf-8")


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
    """Run a line of shell in the copy as its reader would; return what it prints."""
    if command.startswith("make "):  # which must not install anything through the links to .venv
        assert subprocess.run(["make", "-q", ".venv/.dev"], cwd=copy).returncode == 0
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
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
