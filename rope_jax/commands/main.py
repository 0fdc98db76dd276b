"""The installed command: `rope-jax NAME …` calls the command of that name."""

import difflib
import importlib

from rope_jax import __version__, cli
from rope_jax.errors import INSTALLED, UserError

# What each command does, in the order in which help lists them.
COMMANDS = {
    "train": "train a small language model from a config; also resumes",
    "sweep": "measure a run's perplexity against length, by scaling",
    "compare": "compare runs and sweeps: figure, tables, page",
    "key-tokens": "find tokens that need far context (LongPPL)",
    "fit": "fit a run's positions to longer texts, weights frozen",
    "plan": "show the cost of a run or a sweep without starting it",
    "show": "show scalings pair by pair, and unseen angles",
    "maps": "show position maps as pictures",
    "grid": "run many experiments and compare them; also through Slurm",
    "import": "import a Hugging Face checkpoint as a run",
    "export": "export a run as a folder that transformers loads",
}
# Modules of rope_jax.commands whose command has a name that Python reserves.
_MODULES = {"import": "importing", "export": "exporting"}


def run() -> None:
    cli.run(main)


def main(argv: list[str]) -> None:
    """Call the command that the first argument names with the others. UserError: there is none."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(f"usage: {INSTALLED} COMMAND …\n")
        print("How far past its training window can a model with rotary positions read?\n")
        for name, about in COMMANDS.items():
            print(f"  {name:11}{about}")
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
        raise UserError(f"unknown command; {advice}")
    module = _MODULES.get(name, name.replace("-", "_"))
    importlib.import_module(f"rope_jax.commands.{module}").main(arguments)
