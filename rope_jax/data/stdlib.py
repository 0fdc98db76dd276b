"""The default corpus: the source of the standard library of the Python that runs.

Real text with long-range structure on every machine, no network.
"""

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rope_jax.config.data import StdlibData
from rope_jax.data.shingles import near_copies, share_seen, shingles
from rope_jax.data.splits import SPLITS, assign, stable_key
from rope_jax.errors import UserError

LONG_BYTES = 4096
"""A test document of this size can be read at the lengths that the default sweeps go to."""
LONG_DOCUMENTS = 64
"""How many of them the test split should have."""

# Absent on some systems, near-copies of one another, made by a machine, or not the library's own.
_LEFT_OUT = frozenset(
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
_MACHINE_MADE_FILES = "_sysconfigdata"
_MACHINE_MADE_FOLDERS = "config-"


class Source(NamedTuple):
    """One file: its path below the library's root, with forward slashes, and its text."""

    document: str
    text: str


def stdlib_root() -> Path:
    """Where the standard library of the running interpreter lies."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path) -> list[Path]:
    """The files of the corpus, in the order of their path below `root` on every platform."""
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in _LEFT_OUT and not name.startswith(_MACHINE_MADE_FOLDERS)
        ]
        found += [
            Path(folder, name)
            for name in names
            if name.endswith(".py") and not name.startswith(_MACHINE_MADE_FILES)
        ]
    # A distribution may leave links that lead nowhere.
    return sorted((p for p in found if p.is_file()), key=lambda p: p.relative_to(root).as_posix())


def stdlib_splits(data: StdlibData, root: Path) -> tuple[dict[str, list[Source]], list[str]]:
    """The documents of each split, and what a reader should know of them, one line each.

    Near-copies are dropped; a top-level package or module goes to one split as a whole.
    A file that cannot be read as UTF-8 is left out.

    Raises UserError if there are no source files under `root`.
    """
    sources = [source for path in source_files(root) for source in _read(path, root)]
    if not sources:
        raise UserError(
            f"data.type: stdlib finds no source files in {root}; use text, with data.files"
        )
    grams = [shingles(source.text) for source in sources]
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
        text = path.read_bytes().decode("utf-8")  # bytes: text mode would change line ends
    except (OSError, UnicodeDecodeError):
        return []
    return [Source(path.relative_to(root).as_posix(), text)]


def _group(source: Source) -> str:
    """`asyncio` for asyncio/events.py, `ast` for ast.py."""
    return source.document.split("/")[0].removesuffix(".py")


def _long_note(test: Sequence[Source]) -> str:
    count = sum(len(source.text.encode("utf-8")) >= LONG_BYTES for source in test)
    note = f"long documents: test has {count} of at least {LONG_BYTES} bytes"
    if count < LONG_DOCUMENTS:
        note += f", fewer than {LONG_DOCUMENTS}: intervals will be wide; raise data.test_fraction"
    return note
