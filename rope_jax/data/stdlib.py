"""The default corpus: the source of the running Python's standard library.

Real text with long-range structure on every machine, without network.
"""

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rope_jax import stopping
from rope_jax.config.data import StdlibData
from rope_jax.data.shingles import near_copies, share_seen, shingles
from rope_jax.data.splits import SPLITS, assign, stable_key
from rope_jax.errors import UserError

LONG_BYTES = 4096
"""Bytes that a test document needs for the lengths of the default sweeps."""
LONG_DOCUMENTS = 64
"""Number of test documents that should be at least this long."""

# Absent on some systems, near-copies of one another, or not part of the library.
_EXCLUDED = frozenset(
    {
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "encodings",
        "site-packages",
        "dist-packages",
        "__pycache__",
    }
)
# Prefixes of names that only generated code has.
_GENERATED_FILES = "_sysconfigdata"
_GENERATED_FOLDERS = "config-"


class Source(NamedTuple):
    """One file: its path below the library's root, with forward slashes, and its text."""

    document: str
    text: str


def stdlib_root() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path) -> list[Path]:
    """Return the files of the corpus, sorted by path below `root`, the same on every platform."""
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in _EXCLUDED and not name.startswith(_GENERATED_FOLDERS)
        ]
        found += [
            Path(folder, name)
            for name in names
            if name.endswith(".py") and not name.startswith(_GENERATED_FILES)
        ]
    # A distribution may contain dangling links.
    return sorted((p for p in found if p.is_file()), key=lambda p: p.relative_to(root).as_posix())


def stdlib_splits(data: StdlibData, root: Path) -> tuple[dict[str, list[Source]], list[str]]:
    """Return the documents of each split, and notes on them for the user, one line each.

    Near-copies are dropped. All files of a top-level package or module go to the same split.
    A file that cannot be read as UTF-8 is skipped.

    Raises UserError if there are no source files under `root`.
    """
    sources = [source for path in source_files(root) for source in _read(path, root)]
    if not sources:
        raise UserError(
            f"data.type: stdlib finds no source files in {root}; set data.type=text and data.files"
        )
    grams = []
    for source in sources:
        stopping.check()
        grams.append(shingles(source.text))
    copies = near_copies(grams)
    kept = [i for i in range(len(sources)) if i not in copies]
    keys = np.array([stable_key(_group(sources[i])) for i in kept], np.uint64)
    split = assign(keys, data.validation_fraction, data.test_fraction).tolist()
    members = {
        name: [i for i, s in zip(kept, split, strict=True) if s == number]
        for number, name in enumerate(SPLITS)
    }
    overlap = share_seen([grams[i] for i in members["test"]], [grams[i] for i in members["train"]])
    splits = {name: [sources[i] for i in members[name]] for name in SPLITS}
    notes = [
        f"near-copies dropped: {len(copies)} of {len(sources)} files",
        f"overlap: {overlap:.1%} of the shingles in test also occur in train",
        _long_note(splits["test"]),
    ]
    return splits, notes


def _read(path: Path, root: Path) -> list[Source]:
    try:
        text = path.read_bytes().decode("utf-8")  # text mode would change line ends
    except (OSError, UnicodeDecodeError):
        return []
    return [Source(path.relative_to(root).as_posix(), text)]


def _group(source: Source) -> str:
    """Return the top-level package or module: `asyncio` for asyncio/events.py, `ast` for ast.py."""
    return source.document.split("/")[0].removesuffix(".py")


def _long_note(test: Sequence[Source]) -> str:
    count = sum(len(source.text.encode("utf-8")) >= LONG_BYTES for source in test)
    note = f"long documents: test has {count} of at least {LONG_BYTES} bytes"
    if count < LONG_DOCUMENTS:
        note += f", fewer than {LONG_DOCUMENTS}: intervals will be wide; raise data.test_fraction"
    return note
