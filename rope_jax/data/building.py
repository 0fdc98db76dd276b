"""Folders in which something is being written, beside the place that it will be moved to.

Each is locked by its writer. The lock ends with the process, so that a folder which a killed
process left behind can be told from one that is in use.
"""

import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
"""Name of the lock file in such a folder."""

# Only names that nobody chooses: the parent may be any folder of the user's.
_NAME = re.compile(r"\.[0-9a-f]{32}-[0-9a-f]{32}")


@contextmanager
def building_beside(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside `folder`; what is left of it at the end is deleted.

    Folders that dead processes left there are deleted first. Those of live ones are kept.

    Raises OSError if no folder can be made.
    """
    _remove_abandoned(folder.parent)
    new, lock = _new_locked_folder(folder)
    try:
        yield new
    finally:
        lock.release()
        shutil.rmtree(new, ignore_errors=True)


def _new_locked_folder(folder: Path) -> tuple[Path, FileLock]:
    while True:
        new = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
        new.mkdir()
        lock = FileLock(new / LOCK, blocking=False)
        try:
            lock.acquire()
        except Timeout:  # another process has just taken it for abandoned: it had no lock yet
            continue
        except (OSError, NotImplementedError):  # no locks here: then nobody can take it for that
            pass
        return new, lock


def _remove_abandoned(parent: Path) -> None:
    for path in parent.iterdir():
        if not _NAME.fullmatch(path.name):
            continue
        # It is in use, or there are no locks here, or it belongs to somebody else.
        with suppress(OSError, NotImplementedError), FileLock(path / LOCK, blocking=False):
            shutil.rmtree(path, ignore_errors=True)
