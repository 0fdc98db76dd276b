"""The installed command: `rope-jax NAME …` calls the command of that name."""

import difflib
import importlib

from rope_jax import __version__, cli
from rope_jax.errors import UserError
from rope_jax.invocation import COMMANDS, INSTALLED

# Modules of rope_jax.commands whose command has a name that Python reserves.
_MODULES = {"import": "importing", "export": "exporting"}


def run() -> None:
    cli.run(main)


def main(argv: list[str]) -> None:
    """Call the command that the first argument names with the others. UserError: there is none."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(f"usage: {INSTALLED} COMMAND …\n")
        print("How far past its training window can a model with rotary positions read?\n")
        for name, command in COMMANDS.items():
            print(f"  {name:11}{command.about}")
        print(f"\n{INSTALLED} COMMAND --help   its arguments and keys")
        print(f"{INSTALLED} --version        {__version__}\n\nTo begin: {INSTALLED} train demo")
        return
    name, *arguments = argv
    if name in ("-V", "--version"):
        print(f"{INSTALLED} {__version__}")
        return
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.4)
        advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        raise UserError(f"{name or repr(name)}: unknown command; {advice}")
    module = _MODULES.get(name, name.replace("-", "_"))
    importlib.import_module(f"rope_jax.commands.{module}").main(arguments)
