"""The cache of what is made from the texts of a corpus: its tokens, or a tokenizer.

Each is a folder, named by a hash of everything that its files depend on, so its content
never changes.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from rope_jax.config.data import DataConfig, HubData, StdlibData
from rope_jax.data.files import matching_files
from rope_jax.data.stdlib import source_files, stdlib_root
from rope_jax.errors import file_errors
from rope_jax.sealed import locked, replacing_folder
from rope_jax.user_cache import user_cache

CHANGE = "name another folder with data.cache_dir"
RECIPE = 4
"""Increment when the same source would no longer give the same tokens in the same files."""


def cache_folder(data: DataConfig, tokenizer: str, only: str | None = None) -> Path:
    """Return the folder for the tokens of `data`, or for a tokenizer trained on them.

    A local file is identified by its path, size and modification time. A data set on the hub is
    identified by its id and `data.revision` alone, so without a revision the first one read stays
    cached. only: the split that is read; None: all.

    UserError: a pattern in `data.files` matches nothing.
    """
    by_split = dict[str, list[Path]]()
    if isinstance(data, StdlibData):
        by_split = {"all": source_files(stdlib_root())}
    elif not isinstance(data, HubData):
        by_split = matching_files(data)
    files = []
    with file_errors("data.files"):
        for split, paths in by_split.items():
            for path in paths:
                stat = path.stat()
                names = str(path), os.path.abspath(path)
                files.append((split, *names, stat.st_size, stat.st_mtime_ns))
    added = {"split_special_tokens", "eos"}  # by a later version, which finds what is cached
    settings = data.model_dump(exclude={"cache_dir", "streaming", "mix", "files"} | added)
    settings |= data.model_dump(include=added, exclude_defaults=True)
    identity = dict(recipe=RECIPE, data=settings, tokenizer=tokenizer, files=files, only=only)
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    root = user_cache() if data.cache_dir is None else Path(data.cache_dir).expanduser()
    return root / key


def make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Have `make` write the files of a folder of the cache, unless it is there.

    It appears complete or not at all. If several processes need it at once, one makes it and the
    others wait.
    """
    with file_errors(folder, "written", CHANGE), contextlib.ExitStack() as stack:
        if folder.exists():
            return
        if not folder.parent.exists():
            stack.callback(_remove_if_empty, folder.parent)
        with contextlib.suppress(OSError):  # a file system without locks
            stack.enter_context(locked(folder.with_name(f".{folder.name}.lock")))
        if not folder.exists():  # it may have been made meanwhile
            with replacing_folder(folder) as new:
                make(new)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
