"""Files and folders that appear complete or not at all; locks; the hash of the source code."""

import contextlib
import functools
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from rope_jax.errors import UserError

_OLD = ".old"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; it takes the place of `path` once the block succeeds."""
    # with the suffix, by which libraries choose a format
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    temporary.unlink(missing_ok=True)  # it may be a link, which would be followed
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a new empty folder; it takes the place of `folder` once the block succeeds."""
    finish_replacing(folder)
    new, old = _siblings(folder)
    for left in (new, old):  # `finish_replacing` removes them only where `folder` exists
        remove(left)
    new.mkdir(parents=True)
    try:
        yield new
    except BaseException:
        remove(new)
        raise
    if os.path.lexists(folder):
        folder.rename(old)
        finish_replacing(folder)
    else:
        new.rename(folder)


def finish_replacing(folder: Path) -> None:
    """Complete what a process killed in `replacing_folder` began. OSError: nothing is lost."""
    new, old = _siblings(folder)
    if not os.path.lexists(old):
        return
    if not os.path.lexists(folder):  # killed between the two renames: the new one is complete
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            new.rename(folder)
    if os.path.lexists(folder):
        remove(old)


def _siblings(folder: Path) -> tuple[Path, Path]:
    """Return where the new folder is written, and where the old one waits to be deleted."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}{_OLD}")


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def locked(path: Path, busy: str = "") -> Iterator[None]:
    """Hold a lock file, which is deleted at the end. UserError `busy`, if given, and no waiting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, blocking=not busy)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(busy) from None
    try:
        yield
    finally:
        # while it is locked: a process that has opened it already sees that it is gone
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()


@functools.cache
def code_hash() -> str:
    """Return a hash of the package's source files, as they are at the first call."""
    package, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(package.rglob("*")):
        if file.suffix in (".py", ".cc", ".h", ".toml", ".yaml", ".html"):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(package)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
