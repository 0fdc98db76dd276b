"""Run commands in one process: requests come as lines of JSON on stdin, answers go to stdout."""

import contextlib
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


def main() -> None:
    sys.path.insert(0, str(ROOT))
    # Answers go to a copy of stdout that no library knows.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(run(**json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
