"""Files and folders that appear complete or not at all, and whose damage is noticed.

The checksums of a sealed folder are in a file that `sha256sum --check` reads as well.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from rope_jax.errors import UserError

CHECKSUMS = "SHA256SUMS"
_OLD = ".old"
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+)")


class Damaged(UserError):
    """Files are not as they were written."""


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


def seal(folder: Path, names: Sequence[str]) -> None:
    """Write the checksums of files in `folder` to a file beside them. Raises OSError."""
    digests = [(hashlib.sha256((folder / name).read_bytes()).hexdigest(), name) for name in names]
    write_text(folder / CHECKSUMS, "".join(f"{digest}  {name}\n" for digest, name in digests))


def read_checksums(folder: Path) -> Mapping[str, str] | None:
    """Return the checksums of a folder's files by name, or None if it has none. Raises Damaged."""
    path = folder / CHECKSUMS
    try:
        lines = path.read_text("ascii", "replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    matches = [_LINE.fullmatch(line) for line in lines]
    if not matches or None in matches:
        raise Damaged(f"{path}: is damaged; delete it to use the files as they are")
    return {match[2]: match[1] for match in matches if match}


def check_content(path: Path, content: bytes, checksums: Mapping[str, str] | None) -> None:
    """Raise Damaged unless a file's content fits its folder's checksums, if there are any."""
    if checksums is not None and checksums.get(path.name) != hashlib.sha256(content).hexdigest():
        raise Damaged(
            f"{path}: is not what was written (its checksum is not that in {CHECKSUMS}); it is "
            f"damaged or was edited: write it again, or delete {CHECKSUMS} to use it as it is"
        )


@functools.cache
def code_hash() -> str:
    """Return a hash of the package's source files, as they are at the first call."""
    package, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(package.rglob("*")):
        if file.suffix in (".py", ".cc", ".h", ".toml", ".yaml"):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(package)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]
