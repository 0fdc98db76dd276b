"""Shared by all commands: --help, --print-config, and errors as one line. Imports no jax."""

import argparse
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rope_jax import __version__, stopping
from rope_jax.devices.malloc import keep_freed_memory
from rope_jax.errors import INSTALLED, Stopped, UserError, printable, program

if TYPE_CHECKING:  # slow imports: until `run` listens to signals, Ctrl-C gives a traceback
    from pydantic import BaseModel

    from rope_jax.config.devices import DistributedConfig
    from rope_jax.config.extend import ExtendConfig
    from rope_jax.config.fit import FitConfig


RUN = "a run directory, or a checkpoint: a folder, an id on the hub, or a GGUF file"
_WIDEST_HELP = 120  # columns: longer lines are hard to read


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments"):
            message += "; write key=value"
        raise UserError(f"{message}; see {self.prog} --help")


def parser(
    usage: str, description: str | None, schema: "type[BaseModel] | None" = None, **positional: str
) -> argparse.ArgumentParser:
    """Return a parser with `usage`, such as "RUN", and the keys of `schema`, if it has any.

    positional: what --help says about each positional argument, named by the words of `usage`.
    """
    keys = "" if schema is None else " [key=value ...]"
    made = _Parser(
        usage=f"{program()} {usage}{keys}",
        prog=program(),
        description=f"{description} Keys:" if keys else description,
        add_help=schema is None,
        allow_abbrev=False,
    )
    for (name, about), word in zip(positional.items(), usage.split(), strict=False):
        nargs = "?" if word.startswith("[") else None
        made.add_argument(name, metavar=word.strip("[]"), nargs=nargs, help=about)
    version = f"{INSTALLED} {__version__}"
    made.add_argument("--version", action="version", version=version, help="print the version")
    if schema is not None:
        about = "print the resolved config and exit"
        made.add_argument("--print-config", action="store_true", help=about)
        about = "print this, or all about a key or section, and exit"
        made.set_defaults(schema=schema)
        made.add_argument(
            "-h", "--help", action=_Help, nargs="?", metavar="KEY", const=schema, help=about
        )
    return made


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse a command line; the result has `overrides` beside the parser's own arguments.

    A word with an equals sign is an override, in any position, unless it is a path.
    """
    arguments = parser.parse_args([word for word in argv if not _is_override(word)])
    arguments.overrides = [word for word in argv if _is_override(word)]
    return arguments


def command_line(command: str, *words: str) -> str:
    """Return a line of shell that runs one of the commands."""
    return shlex.join([INSTALLED, command, *words])


def print_next(*lines: str) -> None:
    """Print the next commands to run, one per line of shell, never wrapped or cut."""
    for number, line in enumerate(lines):
        print(f"{' ' * 6 if number else 'next: '}{printable(line)}")


def open_directory(
    run: str,
    distributed: "DistributedConfig | None" = None,
    *,
    stderr: bool = False,
    texts_for: "FitConfig | ExtendConfig | None" = None,
) -> tuple[Any, ...]:
    """Return the run's directory, its config and a console; a checkpoint is imported first.

    texts_for: what needs texts of its own for a checkpoint, which comes with none.
    """
    from rope_jax.checkpoints.open import is_checkpoint
    from rope_jax.config.checkpoints import ImportConfig
    from rope_jax.config.data import check_has_texts
    from rope_jax.console import plain_console
    from rope_jax.runs.directory import RunDirectory
    from rope_jax.user_cache import keep_compiled_programs

    keep_freed_memory()
    keep_compiled_programs()
    console = plain_console(stderr=stderr)
    directory = RunDirectory(Path(run))
    if is_checkpoint(run):
        if texts_for is not None:  # before the import, which may take minutes
            check_has_texts(texts_for.data, run)
        if distributed is not None:
            raise UserError(
                f"distributed: import the checkpoint first, with rope-jax import {run}, and "
                "name the run directory"
            )
        from rope_jax.checkpoints.importing import import_checkpoint

        directory = import_checkpoint(run, ImportConfig(), console)
    training = directory.load_config()
    stopping.check()
    return directory, training, console


def read_config(
    parser: argparse.ArgumentParser,
    argv: list[str],
    file: str = "",
    kind: str = "",
    read: Callable[..., Any] | None = None,
    dump: Callable[[Any], str] | None = None,
) -> tuple[argparse.Namespace, Any]:
    """Parse a command line; return its arguments and the config, which --print-config prints.

    file: the argument that names the config's file. kind: the folder of configs/ with such files.
    read, dump: in place of `load` and `dump`.
    """
    from rope_jax.config import load

    arguments = parse(parser, argv)
    path = getattr(arguments, file, None)
    path = None if path is None else load.config_path(path, kind)
    config = (read or load.load)(arguments.schema, path, arguments.overrides)
    if arguments.print_config:
        print((dump or load.dump)(config), end="", flush=True)
        sys.exit()
    return arguments, config


def _is_override(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key[:1] != "-" and "/" not in key and not os.path.exists(word)


def run(main: Callable[[list[str]], None]) -> NoReturn:
    """Call `main` with the command line and exit with its status.

    Bad input gives one line on stderr and status 2; a signal, one line and status 128 + signal.
    """
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)
    with stopping.listening():
        status = _call(main)
    # Python's handler would raise KeyboardInterrupt in the middle of the interpreter's clean-up.
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


def _call(main: Callable[[list[str]], None]) -> int:
    from rope_jax.sealed import code_hash

    try:
        code_hash()  # before most of what it covers is imported
        main(sys.argv[1:])
        sys.stdout.flush()
        return 0
    except Stopped as stop:
        status, message = 128 + stop.signal, str(stop)
    except KeyboardInterrupt:
        status, message = 128 + signal.SIGINT, "stopped; run the same command again to resume"
    except UserError as error:
        status, message = 2, str(error)
    except RuntimeError as error:
        if "Unable to initialize backend" not in str(error):  # jax has no class for it
            raise
        more = "if other programs use its memory, end them; JAX_PLATFORMS=cpu computes without it"
        status, message = 2, f"no accelerator can be used: {error}; {more}"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `--help | head`
        return 0
    print(printable(f"{program()}: {message}"), file=sys.stderr)
    return status


class _Help(argparse.Action):
    """Print the keys of a config, `const`, or all about one of them."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, key: Any, *__: object) -> None:
        from rope_jax.config.key_help import key_overview, key_section

        width = max(60, min(shutil.get_terminal_size().columns, _WIDEST_HELP))
        if key is self.const:  # none was named
            print(parser.format_help())
            lines = key_overview(self.const, parser.prog, width)
        else:
            lines = key_section(self.const, key, width)
        print("\n".join(map(printable, lines)))
        parser.exit()
