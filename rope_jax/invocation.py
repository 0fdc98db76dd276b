"""How this process was called, so that messages name commands as the user types them.

Every command exists twice: as a script of the repository, and as a part of the installed command
`rope-jax`. Imports nothing slow.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

INSTALLED = "rope-jax"
# The installed command's name for each command, and the script that does the same.
SCRIPTS = {
    "train": "train.py",
    "sweep": "eval_ppl.py",
    "compare": "scripts/compare.py",
    "key-tokens": "scripts/key_tokens.py",
    "fit": "scripts/fit.py",
    "plan": "scripts/plan.py",
    "show": "scripts/show_scaling.py",
    "maps": "scripts/show_maps.py",
    "costs": "scripts/show_costs.py",
    "grid": "scripts/grid.py",
    "import": "scripts/import_hf.py",
    "export": "scripts/export_hf.py",
}


def program() -> str:
    """Return the command as an error begins with it: "eval_ppl.py", or "rope-jax sweep"."""
    if not (_is_installed() or _is_module()):
        return os.path.basename(sys.argv[0])
    command = [word for word in sys.argv[1:2] if word in SCRIPTS]
    return " ".join([INSTALLED, *command])


def command_line(command: str, *words: str) -> str:
    """Return a line of shell that runs a command, called in the same way as this process was.

    command: a key of SCRIPTS. words: its arguments, which are quoted where the shell needs it.
    """
    return " ".join([*_start_of(command), *map(quoted, words)])


def quoted(word: str) -> str:
    """Return one word for the shell, without any character that a terminal would obey."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def browser_line(page: Path) -> str:
    """Return a line of shell that opens a page in the browser."""
    return f"{_python()} -m webbrowser {quoted(page.resolve().as_uri())}"


def tensorboard_line(folder: str) -> str:
    """Return a line of shell that shows a folder's event files.

    In the folder of the repository it is the target of the Makefile, which also says where to look.
    """
    if repository() == Path.cwd() and quoted(folder) == folder:
        return f"make tensorboard RUNS={folder}"
    return f"{tool('tensorboard')} --logdir {quoted(folder)}"


def repository() -> Path | None:
    """Return the folder of the repository whose script was called; None: no script was."""
    called = os.path.abspath(sys.argv[0])
    for script in SCRIPTS.values():
        if called.endswith(os.sep + script):
            return Path(called.removesuffix(script))
    return None


def tool(name: str) -> str:
    """Return the shell's word for a program that was installed beside this Python.

    The bare name where the shell finds this very program, and otherwise its path.
    """
    path = os.path.join(os.path.dirname(sys.executable), name)
    found = shutil.which(name)
    if found is not None and os.path.abspath(found) == os.path.abspath(path):
        return name
    return quoted(_short(path))


def _start_of(command: str) -> list[str]:
    """Return the words before the arguments of a command."""
    if _is_module():
        return [_python(), "-m", "rope_jax", command]
    root = repository()
    if root is None:
        return [tool(INSTALLED), command]
    return [_python(), quoted(_short(str(root / SCRIPTS[command])))]


def _python() -> str:
    """Return the shell's word for this Python; "python" where that is the same program."""
    beside = os.path.join(os.path.dirname(sys.executable), "python")
    return tool("python" if os.path.exists(beside) else os.path.basename(sys.executable))


def _is_installed() -> bool:
    return os.path.basename(sys.argv[0]) == INSTALLED


def _is_module() -> bool:
    """Whether it was called as `python -m rope_jax`."""
    folder, name = os.path.split(sys.argv[0])
    return name == "__main__.py" and os.path.basename(folder) == "rope_jax"


def _short(path: str) -> str:
    """Return a path relative to the working directory if it lies below that."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def _escaped(character: str) -> str:
    r"""Return a character inside of $'…': itself, or an escape such as \u001b."""
    if character in "\\'":
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a path that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"
