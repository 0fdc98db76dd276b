"""Checksums of a folder's files, in a file that `sha256sum --check` reads as well."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rope_jax.errors import UserError
from rope_jax.rope.files import read_limited
from rope_jax.runs.files import write_text

CHECKSUMS = "SHA256SUMS"
RUN_CONFIG = "run.yaml"
"""In a sweep's folder: the config of the run that was swept."""
_MOST_BYTES = 2**16
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+)")


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of files in `folder` to a file beside them. Raises OSError."""
    lines = [f"{_digest((folder / name).read_bytes())}  {name}\n" for name in names]
    write_text(folder / CHECKSUMS, "".join(lines))


def read_checksums(folder: Path) -> Mapping[str, str] | None:
    """Return the checksums of a folder's files by name; None if it has none.

    Folders that earlier versions wrote have none. UserError: the file is damaged.
    """
    path = folder / CHECKSUMS
    try:
        lines = read_limited(path, _MOST_BYTES).decode("ascii").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); sweep again") from None
    except UnicodeDecodeError:
        lines = [""]
    found = [_LINE.fullmatch(line) for line in lines]
    if not found or None in found:
        raise UserError(f"{path}: is damaged; sweep again")
    return {match[2]: match[1] for match in found if match}


def check_checksum(path: Path, content: bytes, checksums: Mapping[str, str] | None) -> None:
    """UserError unless the content of a file is what was written. checksums: of its folder."""
    if checksums is not None and checksums.get(path.name) != _digest(content):
        raise UserError(
            f"{path}: is not what the sweep wrote (its checksum is not that in {CHECKSUMS}); it is "
            f"damaged or was edited: sweep again, or delete {CHECKSUMS} to use it as it is"
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
