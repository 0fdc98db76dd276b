"""The installed command: `rope-jax NAME …` calls the command of that name."""

import difflib
import importlib
from typing import NamedTuple

from rope_jax import __version__, cli
from rope_jax.errors import UserError
from rope_jax.invocation import INSTALLED


class Command(NamedTuple):
    """Where a command is, and what it does."""

    module: str
    """Of rope_jax.commands; it has `main`."""
    about: str


COMMANDS = {
    "train": Command("train", "train a small language model from a config; also resumes"),
    "sweep": Command("sweep", "measure a run's perplexity against context length, by scaling"),
    "compare": Command("compare", "compare runs, seeds and sweeps: figure, tables, page"),
    "key-tokens": Command("key_tokens", "find the tokens that need far context, for LongPPL"),
    "fit": Command("fit", "fit a run's positions to longer texts, with its weights frozen"),
    "plan": Command("plan", "show what a run or a sweep would take, without starting it"),
    "show": Command("show", "show scalings pair by pair: wavelengths, turns, unseen angles"),
    "maps": Command("maps", "show position maps as pictures"),
    "costs": Command("costs", "show what training runs and fits took"),
    "grid": Command("grid", "run many experiments and compare them; also through Slurm"),
    "import": Command("importing", "import a Hugging Face checkpoint as a run"),
    "export": Command("exporting", "export a run as a folder that transformers loads"),
}


def run() -> None:
    """Run the installed command."""
    cli.run(main)


def main(argv: list[str]) -> None:
    """Call the command that the first argument names with the others. UserError: there is none."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return
    name, *arguments = argv
    if name in ("-V", "--version"):
        print(f"{INSTALLED} {__version__}")
        return
    if name not in COMMANDS:
        raise UserError(_unknown(name))
    module = importlib.import_module(f"rope_jax.commands.{COMMANDS[name].module}")
    module.main(arguments)


def _help() -> str:
    lines = [
        f"usage: {INSTALLED} COMMAND …",
        "",
        "How far past its training window can a model with rotary positions read?",
        "",
        *(f"  {name:11}{command.about}" for name, command in COMMANDS.items()),
        "",
        f"{INSTALLED} COMMAND --help   its arguments and keys",
        f"{INSTALLED} --version        {__version__}",
        "",
        f"To begin: {INSTALLED} train demo",
    ]
    return "\n".join(lines)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.4)
    advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
    return f"{name or repr(name)}: unknown command; {advice}"
