"""Which code computes: a hash of its source, as it was when this process imported it.

Imports nothing of the package but its errors, so that a command can call `code_hash` first.
"""

import functools
import hashlib
from pathlib import Path

from rope_jax.errors import UserError

_PACKAGE = Path(__file__).parents[1]
# What computes an NLL, or decides from which checkpoint and which texts; fits as well. The rest of
# the package prints, draws and trains.
_THAT_COMPUTES = (
    *("rope", "positions", "config", "attention", "data", "devices", "kernels"),
    *("model", "evaluation"),
    *("training/checkpoints.py", "sweeps/checkpoints.py", "sweeps/compatibility.py"),
    *("sweeps/model.py", "sweeps/run.py", "fitting"),
)


@functools.cache
def code_hash() -> str:
    """Return a hash of the source files that compute NLLs, as it is at the first call.

    A command calls it before it imports them: they may be edited while it runs.
    """
    return hash_sources(_PACKAGE)


def check_code() -> None:
    """UserError if the code was changed between the first call of `code_hash` and its import."""
    if hash_sources(_PACKAGE) != code_hash():
        raise UserError(
            f"{_PACKAGE}: its code was changed while this command started; run the command again"
        )


def hash_sources(package: Path) -> str:
    """Return a hash of the source files that compute NLLs."""
    found = hashlib.sha256()
    for place in _THAT_COMPUTES:
        path = package / place
        for file in [path] if path.suffix else sorted(filter(_is_source, path.rglob("*"))):
            content = file.read_bytes()
            found.update(f"{file.relative_to(package)} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16]


def _is_source(file: Path) -> bool:
    return file.suffix in (".py", ".cc", ".h")
