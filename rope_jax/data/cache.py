"""Where the tokens of a corpus are cached: one folder per corpus, named by its identity.

The name is a hash of everything that the tokens depend on, so the content of a folder never
changes.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rope_jax.config.data import DataConfig, HubData, StdlibData
from rope_jax.data.files import matching_files
from rope_jax.data.stdlib import source_files, stdlib_root
from rope_jax.errors import UserError
from rope_jax.user_cache import user_cache

RECIPE = 2
"""Increment when the same source would no longer give the same tokens in the same files."""


def cache_folder(data: DataConfig, tokenizer: str, only: str | None = None) -> Path:
    """Return the folder for the tokens of `data`, or for a tokenizer trained on them.

    Imports no datasets and reads no documents. only: the split that is read; None: all.

    A local file is identified by its path, size and modification time; listing it twice makes no
    difference. A data set on the hub is identified by its id and `data.revision` alone, so without
    a revision the first one read stays cached.

    Raises UserError if a pattern in `data.files` matches nothing, or for a bad `data.cache_dir`.
    """
    settings = data.model_dump(exclude={"cache_dir", "streaming", "mix"})
    files = dict[str, list[Path]]()
    if isinstance(data, StdlibData):
        files = {"all": source_files(stdlib_root())}
    elif not isinstance(data, HubData):
        files, patterns = matching_files(data)
        settings["files"] = patterns if isinstance(data.files, dict) else patterns["train"]
    identity = {
        "recipe": RECIPE,
        "data": settings,
        "tokenizer": tokenizer,
        "files": _file_identities(files),
    }
    if only is not None:
        identity["only"] = only
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    return _cache_root(data) / key


@contextmanager
def writing_to(folder: Path, what: str) -> Iterator[None]:
    """Turn an OSError in the block into a UserError that names data.cache_dir."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"data.cache_dir: cannot write {what} to {folder} ({error.strerror or error}); "
            "name a writable folder"
        ) from error


def _cache_root(data: DataConfig) -> Path:
    try:
        root = user_cache() if data.cache_dir is None else Path(data.cache_dir).expanduser()
        os.path.abspath(root).encode("utf-8")
    except RuntimeError:
        user = (data.cache_dir or "~").partition("/")[0]
        why = f"there is no user {user}" if data.cache_dir else "you have no home directory"
        raise UserError(f"data.cache_dir: {why}; name another folder") from None
    except UnicodeEncodeError:  # pyarrow opens no such path
        raise UserError(
            f"data.cache_dir: the path of {root} is not UTF-8; name another folder"
        ) from None
    return root


def _file_identities(by_split: dict[str, list[Path]]) -> list[tuple[str, str, int, int]]:
    """Return split, absolute path, size and modification time of every local file."""
    try:
        return [
            (split, os.path.abspath(path), (status := path.stat()).st_size, status.st_mtime_ns)
            for split, paths in by_split.items()
            for path in paths
        ]
    except OSError as error:  # such as a file that was deleted just now
        raise UserError(f"data: cannot read {error.filename}: {error.strerror}") from error
