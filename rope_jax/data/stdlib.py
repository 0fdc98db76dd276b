"""The default corpus: the source of the running Python's standard library.

Real text with long-range structure on every machine, without network.
"""

import contextlib
import os
import sys
import sysconfig
from pathlib import Path

import numpy as np

from rope_jax.config.data import StdlibData
from rope_jax.data.splits import SPLITS, Document, assign, stable_key
from rope_jax.errors import UserError

# The default sweeps need so many test documents of at least so many bytes.
_LONG_DOCUMENTS, _LONG_BYTES = 64, 4096

# Absent on some systems, near-copies of one another, or not part of the library.
_EXCLUDED = {
    *("test", "tests", "idlelib", "lib2to3", "pydoc_data", "encodings"),
    *("site-packages", "dist-packages", "__pycache__"),
}
# Files half of whose 5-grams of words are in a larger file, in Python 3.11 to 3.13.
_NEAR_COPIES = {
    *("__phello__/__init__.py", "__phello__/spam.py", "_pyrepl/__init__.py", "_pyrepl/curses.py"),
    *("_pyrepl/fancy_termios.py", "bz2.py", "chunk.py", "distutils/_msvccompiler.py"),
    *("distutils/msvccompiler.py", "importlib/simple.py", "sre_constants.py", "sre_parse.py"),
    *("venv/__main__.py", "xml/etree/__init__.py", "xmlrpc/__init__.py"),
    "sqlite3/__init__.py" if sys.version_info >= (3, 12) else "importlib/resources/_itertools.py",
}


def stdlib_root() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path) -> list[Path]:
    """Return the files of the corpus, sorted by path below `root`, the same on every platform."""
    files: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        kept = set(subfolders) - _EXCLUDED
        # these prefixes are of generated code
        subfolders[:] = [name for name in kept if not name.startswith("config-")]
        python = (name for name in names if name.endswith(".py"))
        files += [Path(folder, name) for name in python if not name.startswith("_sysconfigdata")]
    # a distribution may contain dangling links
    return sorted((p for p in files if p.is_file()), key=lambda p: p.relative_to(root).as_posix())


def stdlib_splits(data: StdlibData, root: Path) -> tuple[dict[str, list[Document]], list[str]]:
    """Return the documents of each split, and notes on them for the user, one line each.

    Near-copies and files that are not UTF-8 are dropped. All files of a top-level package or module
    go to the same split. UserError: there are no source files.
    """
    sources: list[Document] = []
    for path in source_files(root):
        name = path.relative_to(root).as_posix()
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if name not in _NEAR_COPIES:
                text = path.read_bytes().decode("utf-8")  # text mode would change line ends
                sources.append(Document(name, text))
    if not sources:
        raise UserError(
            f"data.type: stdlib finds no source files in {root}; set data.type=text and data.files"
        )
    # The group of a file is its top-level package or module: `asyncio`, `ast`.
    groups = [source.document.split("/")[0].removesuffix(".py") for source in sources]
    keys = np.array([stable_key(group) for group in groups], np.uint64)
    assigned = assign(keys, data.validation_fraction, data.test_fraction).tolist()
    splits: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for source, split in zip(sources, assigned, strict=True):
        splits[SPLITS[split]].append(source)
    count = sum(len(source.text.encode("utf-8")) >= _LONG_BYTES for source in splits["test"])
    note = f"long documents: test has {count} of at least {_LONG_BYTES} bytes"
    if count < _LONG_DOCUMENTS:
        note += f", fewer than {_LONG_DOCUMENTS}: intervals will be wide; raise data.test_fraction"
    return splits, [note]
