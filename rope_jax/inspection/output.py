"""Output files of the inspection scripts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rope_jax.errors import UserError
from rope_jax.runs.files import replacing


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` once the block succeeds.

    UserError: the file cannot be written.
    """
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        raise UserError(f"output: {path} cannot be written ({error.strerror or error})") from None
