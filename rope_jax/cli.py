"""What the two commands share: --help, --print-config, and errors as one line."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from rope_jax.config.keys import fields
from rope_jax.errors import Stopped, UserError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def parser(usage: str, about: str, schema: type[BaseModel]) -> argparse.ArgumentParser:
    """An argument parser whose --help ends with every key of `schema`."""
    made = _Parser(usage=usage, description=about, add_help=False, allow_abbrev=False)
    made.add_argument("--print-config", action="store_true", help="show the resolved keys, stop")
    made.add_argument("-h", "--help", action=_help_action(schema), help="show this, stop")
    return made


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse; what holds an equals sign is an override, wherever it stands, unless it is a path."""
    overrides = [word for word in argv if _is_override(word)]
    try:
        arguments, extra = parser.parse_known_args([w for w in argv if not _is_override(w)])
    except UserError as error:
        if overrides and "required" in str(error):
            word = overrides[0]
            raise UserError(f"{error} ({word} is an override; write a path as ./{word})") from None
        raise
    for word in extra:
        what = "unknown option" if word.startswith("-") else "unexpected; write key=value"
        raise UserError(f"{word or repr(word)}: {what}; see {parser.prog} --help")
    arguments.overrides = overrides
    return arguments


def _is_override(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key[:1] != "-" and "/" not in key and not os.path.exists(word)


def run(main: Callable[[list[str]], None]) -> NoReturn:
    """Call main with the command line; bad input is one line on stderr and exit status 2."""
    # Where training has no handler of its own, SIGTERM ends the work as Ctrl-C does.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        main(sys.argv[1:])
        sys.stdout.flush()
    except (Stopped, KeyboardInterrupt) as stop:
        if isinstance(stop, KeyboardInterrupt):
            stop = Stopped("stopped; the same command goes on from what was saved", signal.SIGINT)
        print(f"{os.path.basename(sys.argv[0])}: {stop}", file=sys.stderr)
        sys.exit(128 + stop.signal)
    except UserError as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _terminate(number: int, _: object) -> NoReturn:
    raise Stopped("stopped; the same command goes on from what was saved", number)


def _help_action(schema: type[BaseModel]) -> type[argparse.Action]:
    class Help(argparse.Action):
        def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
            super().__init__(option_strings, dest, nargs=0, help=help)

        def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
            print(parser.format_help())
            _print_keys(schema)
            parser.exit()

    return Help


def _print_keys(schema: type[BaseModel]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("key", no_wrap=True)
    table.add_column("type", overflow="fold", max_width=34, style="dim")
    table.add_column("default", overflow="fold", max_width=16)
    table.add_column("")
    section = ""
    for key, kind, default, about in fields(schema):
        start = key.partition(".")[0] if "." in key else ""
        if start != section:
            table.add_row()
            section = start
        # plain text: a description's [brackets] are not Rich markup
        table.add_row(*(cell.replace("[", r"\[") for cell in (key, kind, default, about)))
    console.print(table)
