"""Which code measures: a hash of the package's source, as it was when this process imported it.

Imports nothing of the package but its errors, so that a command can call `code_hash` first.
"""

import functools
import hashlib
from pathlib import Path

from rope_jax.errors import UserError

_PACKAGE = Path(__file__).parents[1]


@functools.cache
def code_hash() -> str:
    """Return a hash of all source files, as it is at the first call.

    A command calls it before it imports them: they may be edited while it runs.
    """
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*")):
        if file.suffix in (".py", ".cc", ".h"):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(_PACKAGE)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@functools.cache
def check_code() -> None:
    """UserError if the code was changed between the first call of `code_hash` and its import.

    Later calls do nothing: what is imported stays as it is.
    """
    if code_hash.__wrapped__() != code_hash():
        raise UserError(
            f"{_PACKAGE}: its code was changed while this command started; run the command again"
        )
