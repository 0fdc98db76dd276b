"""Where the tokens of a corpus lie on disk, whether they are whole, and how they get there.

A folder a corpus: its name is a hash of everything that the tokens depend on, so what is in it
never changes. `manifest.json` holds each file's size beside what the writer put in it.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rope_jax.config.data import DataConfig, HubData, StdlibData
from rope_jax.data.files import matching_files
from rope_jax.data.stdlib import source_files, stdlib_root
from rope_jax.errors import UserError
from rope_jax.user_cache import user_cache

RECIPE = 1
"""Raise it when the same source would no longer give the same tokens in the same files."""

_MANIFEST = "manifest.json"


def cache_folder(data: DataConfig, tokenizer: str) -> Path:
    """The folder that the tokens of `data` belong in. Imports no datasets, reads no documents.

    A local file is known by path, size and time of change; a hub's data set by its id and
    `data.revision` alone, so with no revision named the first one that was read stays.

    Raises UserError if a pattern in `data.files` matches nothing.
    """
    identity = {
        "recipe": RECIPE,
        "data": data.model_dump(exclude={"cache_dir"}),
        "tokenizer": tokenizer,
        "files": _identity(data),
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    return _cache_root(data) / key


def _cache_root(data: DataConfig) -> Path:
    if data.cache_dir is not None:
        try:
            return Path(data.cache_dir).expanduser()
        except RuntimeError:
            user = data.cache_dir.partition("/")[0]
            raise UserError(f"data.cache_dir: there is no user {user}; name a folder") from None
    return user_cache()


def _identity(data: DataConfig) -> list[Any]:
    if isinstance(data, HubData):
        return []
    if isinstance(data, StdlibData):
        by_split = {"all": source_files(stdlib_root())}
    else:
        by_split = matching_files(data)
    return [
        (split, os.path.abspath(path), (status := path.stat()).st_size, status.st_mtime_ns)
        for split, paths in by_split.items()
        for path in paths
    ]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What the writer put in the manifest; None if the folder is absent or damaged."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        whole = all((folder / n).stat().st_size == size for n, size in manifest["sizes"].items())
        return manifest["content"] if whole else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


@contextmanager
def written_at_once(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A new folder to write files to, and a dict for the manifest; `folder` exists after.

    No other process sees a part of it. Two that write the same folder both succeed.

    Raises UserError if it cannot be written.
    """
    there = folder.parent.exists()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
        new.mkdir()
        try:
            content: dict[str, Any] = {}
            yield new, content
            sizes = {path.name: path.stat().st_size for path in sorted(new.iterdir())}
            manifest = json.dumps({"content": content, "sizes": sizes})
            (new / _MANIFEST).write_text(manifest, "utf-8")
            _move(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            if not there:
                with suppress(OSError):  # not empty: the tokens, or another process's
                    folder.parent.rmdir()
    except OSError as error:
        raise UserError(
            f"data.cache_dir: cannot write tokens in {folder.parent} "
            f"({error.strerror or error}); name a folder that can be written"
        ) from error


def _move(new: Path, folder: Path) -> None:
    try:
        new.rename(folder)
    except OSError:
        # There already: another process was faster, or it is damaged. One key has one content,
        # so replacing file by file is safe under a reader's feet; replacing the folder is not.
        if read_manifest(folder) is None:
            for path in new.iterdir():
                os.replace(path, folder / path.name)
