"""Folders of files that are written once: complete, or not there.

`manifest.json` has the size of each file, by which damage is found, and content of the writer's.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the writer's content of the manifest; None if the folder is absent or damaged."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        sizes = manifest["sizes"].items()
        intact = all((folder / name).stat().st_size == size for name, size in sizes)
        return manifest["content"] if intact else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


@contextmanager
def creating_folder(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a new folder to write files to, and a dict to fill for the manifest.

    Once the block succeeds the files are in `folder`; other processes see all of them or none.
    Two processes that create the same folder at the same time both succeed. If the block raises,
    nothing is left behind.
    """
    parent_existed = folder.parent.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        new.mkdir()
        content: dict[str, Any] = {}
        yield new, content
        sizes = {path.name: path.stat().st_size for path in sorted(new.iterdir())}
        manifest = json.dumps({"content": content, "sizes": sizes})
        (new / _MANIFEST).write_text(manifest, "utf-8")
        _move(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if not parent_existed:
            with suppress(OSError):  # it is not empty
                folder.parent.rmdir()


def _move(new: Path, folder: Path) -> None:
    try:
        new.rename(folder)
    except OSError:
        # The folder exists: another process was faster, or it is damaged. Replace the files and
        # not the folder, which a reader may have open; whoever wrote them, they are the same.
        if read_manifest(folder) is None:
            for path in new.iterdir():
                os.replace(path, folder / path.name)
