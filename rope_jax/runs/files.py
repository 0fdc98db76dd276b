"""Writing files and folders so that they appear complete or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_OLD = ".old"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it takes the place of `path` once the block succeeds.

    The temporary name begins with a dot and keeps the suffix, by which libraries choose a format.
    If the block raises, the temporary file is deleted and `path` stays as it was. What a killed
    process left under the temporary name is deleted.
    """
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    temporary.unlink(missing_ok=True)  # it may be a link, which would be followed
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file, complete or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield a new empty folder; it takes the place of `folder` once the block succeeds.

    If the block raises, the new one is deleted and `folder` stays as it was. The old one is deleted
    only after the new one has taken its place; `finish_replacing` completes what a killed process
    began.
    """
    finish_replacing(folder)
    new, old = _siblings(folder)
    _remove(new)  # of a process killed in the block
    new.mkdir(parents=True)
    try:
        yield new
    except BaseException:
        _remove(new)
        raise
    if os.path.lexists(folder):
        folder.rename(old)
        finish_replacing(folder)
    else:
        new.rename(folder)


def finish_replacing(folder: Path) -> None:
    """Complete what a process killed in `replacing_folder` began; call it before reading `folder`.

    Between the two renames there is no `folder`, but the new one, which is complete, and the old
    one. Several processes may call this at once.

    Raises OSError, for instance on a read-only file system; nothing is lost then.
    """
    new, old = _siblings(folder)
    if os.path.lexists(old) and not os.path.lexists(folder):
        for source in (new, old):
            with contextlib.suppress(FileNotFoundError):  # another process renamed it first
                source.rename(folder)
            if os.path.lexists(folder):
                break
    if os.path.lexists(folder):
        # Under another name first: what is half deleted must never be put back.
        deleted = folder.with_name(f".{folder.name}.deleted")
        _remove(deleted)
        with contextlib.suppress(FileNotFoundError):  # usually; or another process was faster
            old.rename(deleted)
        _remove(deleted)


def unfinished_replacements(parent: Path) -> list[Path]:
    """Return the folders in `parent` that may need `finish_replacing`."""
    found = (path.name for path in parent.iterdir())
    names = [name for name in found if name.startswith(".") and name.endswith(_OLD)]
    return sorted(parent / name[1:].removesuffix(_OLD) for name in names)


def _siblings(folder: Path) -> tuple[Path, Path]:
    """Return where the new folder is written, and where the old one waits to be deleted."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}{_OLD}")


def _remove(path: Path) -> None:
    """Delete a file, a link or a folder, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        # What is left is in folders that may not be written to: those that came with `path`.
        for folder, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                os.chmod(folder, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
