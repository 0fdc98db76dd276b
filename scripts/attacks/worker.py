"""Run commands in one process: requests come as lines of JSON on stdin, answers go to stdout."""

import contextlib
import ctypes
import importlib
import io
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HEED_PERMISSIONS = "--heed-permissions"
# Of Linux's prctl and capabilities: what lets root read and write any file.
_DROP, _OVERRIDE, _READ_SEARCH = 24, 1, 2


def run(script: str, arguments: list[str], file_bytes: int | None) -> dict[str, Any]:
    """Run a command as the shell would, and return its status and what it printed."""
    from rope_jax import cli

    main = importlib.import_module(script.removesuffix(".py").replace("/", ".")).main
    sys.argv = [script, *arguments]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    status: object = None
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        try:
            if file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, limits[1]))
            cli.run(main)
        except SystemExit as end:
            status = end.code
        except BaseException:
            status = 1
            traceback.print_exc()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}


def heed_permissions() -> None:
    """Make this process heed permissions, even if it is root's: it starts again without them."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (_OVERRIDE, _READ_SEARCH):
        if os.geteuid() == 0 and libc.prctl(_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "root cannot give up its permissions")
    os.execv(sys.executable, [sys.executable, __file__])


def main() -> None:
    if HEED_PERMISSIONS in sys.argv:
        heed_permissions()
    sys.path.insert(0, str(ROOT))
    # Answers go to a copy of stdout that no library knows.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(run(**json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
