"""Folders that are written once: complete or absent, and checked for damage when they are read.

`manifest.json` holds the writer's own content, the size and checksums of every file, the folder's
name, and a checksum of all that.
"""

import json
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rope_jax.data.building import LOCK, building_beside
from rope_jax.data.checksums import ChecksummedFile, read_checksums

_MANIFEST = "manifest.json"
_THREADS = min(4, os.cpu_count() or 1)


class Damaged(Exception):
    """A folder is not as it was written: the first file that is not, and what is wrong with it."""


class NewFolder:
    """A folder being written, and what its manifest will say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {}
        """The writer's own content."""
        self._files: dict[str, dict[str, Any]] = {}

    @contextmanager
    def create(self, name: str) -> Iterator[ChecksummedFile]:
        """Open a new file of the folder for writing."""
        with (self.path / name).open("xb") as opened:
            file = ChecksummedFile(opened)
            yield file
        self._files[name] = {"size": file.size, "crc32": file.checksums()}

    def write_manifest(self, name: str) -> None:
        """Write the manifest. name: the folder's final name."""
        manifest = {"folder": name, "content": self.content, "files": self._files}
        text = json.dumps({"manifest": manifest, "crc32": _checksum(manifest)})
        (self.path / _MANIFEST).write_text(text, "utf-8")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Check every byte of a folder; return the content of its manifest, or None if it is absent.

    Raises Damaged, or OSError if something in it cannot be read.
    """
    try:
        _size(folder / _MANIFEST)
    except Damaged:
        if not os.path.lexists(folder):
            return None
        raise
    manifest = _parse((folder / _MANIFEST).read_bytes(), folder.name)
    with ThreadPoolExecutor(_THREADS) as threads:
        for name, written in manifest["files"].items():
            _check_file(folder / name, written["size"], written["crc32"], threads)
    return manifest["content"]


def _parse(raw: bytes, name: str) -> dict[str, Any]:
    try:
        outer = json.loads(raw)
        if "sizes" in outer:
            raise Damaged(f"{_MANIFEST} has no checksums, as an earlier version wrote it")
        manifest = outer["manifest"]
        if outer["crc32"] == _checksum(manifest) and manifest["folder"] == name:
            return manifest
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise Damaged(f"{_MANIFEST} is damaged")


def _checksum(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())


def _check_file(path: Path, size: int, checksums: list[int], threads: ThreadPoolExecutor) -> None:
    found = _size(path)
    if found != size:
        raise Damaged(f"{path.name} is damaged: {found:,} bytes instead of {size:,}")
    if read_checksums(path, size, threads) != checksums:
        raise Damaged(f"{path.name} is damaged: its checksum is wrong")


def _size(path: Path) -> int:
    """Return the size of a regular file: a pipe would never end, nor would a device."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(f"{path.name} is missing") from None
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path.name} is not a regular file")
    return status.st_size


@contextmanager
def creating_folder(folder: Path) -> Iterator[NewFolder]:
    """Yield a new folder to create files in; a damaged one of the same name is replaced.

    Once the block succeeds the files are in `folder`; other processes see all of them or none.
    Two processes that create the same folder at the same time both succeed. If the block raises,
    nothing is left behind.

    Raises OSError if the folder cannot be written.
    """
    parent_existed = folder.parent.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with building_beside(folder) as path:
            new = NewFolder(path)
            yield new
            new.write_manifest(folder.name)
            _move(path, folder)
    finally:
        if not parent_existed:
            with suppress(OSError):  # it is not empty
                folder.parent.rmdir()


def _move(new: Path, folder: Path) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        folder.unlink()
    try:
        new.rename(folder)
        (folder / LOCK).unlink(missing_ok=True)
    except OSError:
        # The folder exists: another process was faster, or it is damaged. Replace the files, not
        # the folder, which a reader may have open; all processes write the same files.
        if not _has_the_files_of(new, folder):
            _replace_files(new, folder)


def _has_the_files_of(new: Path, folder: Path) -> bool:
    try:
        read_manifest(folder)
    except Damaged:
        return False
    return (folder / _MANIFEST).read_bytes() == (new / _MANIFEST).read_bytes()


def _replace_files(new: Path, folder: Path) -> None:
    files = [path for path in new.iterdir() if path.name != LOCK]
    # The manifest last: until then it does not describe the files, so the folder counts as damaged.
    for path in sorted(files, key=lambda path: path.name == _MANIFEST):
        target = folder / path.name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        os.replace(path, target)
