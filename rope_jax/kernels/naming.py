"""Which file holds the compiled kernels.

This module imports nothing of the package, because build.py runs it before there is one.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent


def library() -> Path:
    """Return the file's path, whose name changes with the sources and with jaxlib's version.

    So kernels of older sources are never found, nor those that were compiled for another jaxlib,
    which might refuse them. PackageNotFoundError if jaxlib is not installed.
    """
    found = hashlib.sha256(version("jaxlib").encode())
    for file in sorted([*FOLDER.glob("*.cc"), *FOLDER.glob("*.h"), FOLDER / "build.py"]):
        found.update(file.read_bytes())
    return FOLDER / f"kernels-{found.hexdigest()[:16]}.so"
