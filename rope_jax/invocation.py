"""How this process was called, so that messages name commands as the user types them.

Every command exists twice: as a script of the repository, and as a part of `rope-jax`.
"""

import contextlib
import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rope_jax.errors import UserError

INSTALLED = "rope-jax"


class Command(NamedTuple):
    """A command: the script that is called in the repository, and what the command does."""

    script: str
    about: str


COMMANDS = {
    "train": Command("train.py", "train a small language model from a config; also resumes"),
    "sweep": Command("eval_ppl.py", "measure a run's perplexity against length, by scaling"),
    "compare": Command("scripts/compare.py", "compare runs and sweeps: figure, tables, page"),
    "key-tokens": Command("scripts/key_tokens.py", "find tokens that need far context (LongPPL)"),
    "fit": Command("scripts/fit.py", "fit a run's positions to longer texts, weights frozen"),
    "plan": Command("scripts/plan.py", "show the cost of a run or a sweep without starting it"),
    "show": Command("scripts/show_scaling.py", "show scalings pair by pair, and unseen angles"),
    "maps": Command("scripts/show_maps.py", "show position maps as pictures"),
    "costs": Command("scripts/show_costs.py", "show what training runs and fits took"),
    "grid": Command("scripts/grid.py", "run many experiments and compare them; also through Slurm"),
    "import": Command("scripts/import_hf.py", "import a Hugging Face checkpoint as a run"),
    "export": Command("scripts/export_hf.py", "export a run as a folder that transformers loads"),
}


def program() -> str:
    """Return the command as an error begins with it: "eval_ppl.py", or "rope-jax sweep"."""
    if os.path.basename(sys.argv[0]) != INSTALLED and not _is_module():
        return os.path.basename(sys.argv[0])
    command = [word for word in sys.argv[1:2] if word in COMMANDS]
    return " ".join([INSTALLED, *command])


def command_line(command: str, *words: str) -> str:
    """Return a line of shell that runs a command, called in the same way as this process was."""
    root = repository()
    if _is_module():
        start = [_tool("python"), "-m", "rope_jax", command]
    elif root is None:
        start = [_tool(INSTALLED), command]
    else:
        start = [_tool("python"), _short(str(root / COMMANDS[command].script))]
    return " ".join([*start, *map(shlex.quote, words)])


def browser_line(page: Path) -> str:
    return f"{_tool('python')} -m webbrowser {shlex.quote(page.resolve().as_uri())}"


def tensorboard_line(folder: str) -> str:
    """Return a line of shell that shows a folder's event files; the Makefile's in its folder."""
    if repository() == Path.cwd() and shlex.quote(folder) == folder:
        return f"make tensorboard RUNS={folder}"
    line = f"{_tool('tensorboard')} --logdir {shlex.quote(folder)}"
    return line if is_installed("tensorboard") else f"{install_line('tensorboard')} && {line}"


def is_installed(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # of the package around it
        return importlib.util.find_spec(module) is not None
    return False


def install_line(extra: str) -> str:
    """Return a line of shell that installs an optional extra of this package."""
    return f"{_tool('python')} -m pip install '{INSTALLED}[{extra}]'"


@contextlib.contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """In this block, where packages of an extra are imported, a missing one is a UserError.

    purpose: the message's beginning, what needs the package: "launcher: slurm".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise UserError(
            f"{purpose} needs the package {package}; install it with {install_line(extra)}"
        ) from None


def repository() -> Path | None:
    """Return the folder of the repository whose script was called; None: no script was."""
    called = os.path.abspath(sys.argv[0])
    for command in COMMANDS.values():
        if called.endswith(os.sep + command.script):
            return Path(called.removesuffix(command.script))
    return None


def _tool(name: str) -> str:
    """Return the shell's word for this Python or a program beside it: a name, or a path."""
    path = os.path.join(os.path.dirname(sys.executable), name)
    if name == "python" and not os.path.exists(path):
        path = sys.executable
        name = os.path.basename(path)
    return name if os.path.abspath(shutil.which(name) or "") == path else _short(path)


def _is_module() -> bool:
    folder, name = os.path.split(sys.argv[0])
    return name == "__main__.py" and os.path.basename(folder) == "rope_jax"


def _short(path: str) -> str:
    """Return the shell's word for a path, relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith(os.pardir) else relative)
