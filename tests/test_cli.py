"""What all commands share: help, the resolved config, overrides, and how they end."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import eval_ppl
import train
from rope_jax import __version__, cli
from rope_jax.commands.main import COMMANDS
from rope_jax.commands.main import main as installed_main
from rope_jax.config.key_help import key_overview, key_section
from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import Stopped, UserError, program

ROOT = Path(__file__).parent.parent


@pytest.fixture
def command(monkeypatch, call):
    """Run a command in this process; return its stdout.

    tests/test_bad_input.py starts a process, and tests/test_imports.py sees what they import.
    """
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")

    def command(main, *words):
        status, out, err = call(main, *words)
        assert (status, err) == (0, "")
        return out

    return command


def test_help_lists_the_keys_and_says_all_about_one(command):
    out = command(train.main, "train.py", "--help")
    assert out.startswith("usage: train.py CONFIG.yaml [key=value ...]\n")
    assert "\n".join(key_overview(TrainingConfig, "train.py", 80)) in out
    out = command(eval_ppl.main, "eval_ppl.py", "--help", "scalings.N")
    assert out.splitlines() == key_section(SweepConfig, "scalings.N", 80)
    assert "\n  yarn: YaRN: θ for fast pairs" in out


def test_a_command_names_its_version(command):
    for main, name in ((train.main, "train.py"), (eval_ppl.main, "eval_ppl.py")):
        assert command(main, name, "--version") == f"rope-jax {__version__}\n"


def test_the_printed_config_gives_the_same_run_or_sweep(command, tmp_path):
    given = ["seed=5", "name=b=c"]
    run = command(train.main, "train.py", "configs/demo.yaml", *given, "--print-config")
    # the run of the sweep does not exist: only the sweep is read
    words = ["--print-config", "runs/none", "--sweep", "demo", *given]
    sweep = command(eval_ppl.main, "eval_ppl.py", *words)
    for out, schema, file in (
        (run, TrainingConfig, "demo.yaml"),
        (sweep, SweepConfig, "sweeps/demo.yaml"),
    ):
        (tmp_path / "again.yaml").write_text(out)
        wanted = load(schema, ROOT / "configs" / file, given)
        assert load(schema, tmp_path / "again.yaml") == wanted
        assert wanted.seed == 5


def test_help_may_be_piped_to_a_reader_that_stops_early():
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "train.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, timeout=100)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


def test_overrides_may_stand_anywhere_and_keep_their_order(tmp_path):
    parser = cli.parser("WORD", "About.", SweepConfig)
    parser.add_argument("word")
    parser.add_argument("--sweep")
    got = cli.parse(parser, ["b=1", "--sweep", "file", "a=2", "word", "c=d=e", "b=3"])
    assert got.overrides == ["b=1", "a=2", "c=d=e", "b=3"]
    assert (got.word, got.sweep, got.print_config) == ("word", "file", False)
    # neither an option nor a path is an override
    run = tmp_path / "lr=0.1"
    run.mkdir()
    got = cli.parse(parser, ["--sweep=file", str(run), "a=2"])
    assert (got.word, got.sweep, got.overrides) == (str(run), "file", ["a=2"])


@pytest.mark.parametrize(
    ("raised", "status", "err"),
    [
        (None, 0, ""),
        (UserError("seed: \x1bis\nwrong\n"), 2, "thing.py: seed: \\x1bis\\nwrong\n"),
        (SystemExit(7), 7, ""),
        (
            RuntimeError("Unable to initialize backend 'cuda': all of its memory is in use"),
            2,
            "thing.py: no accelerator can be used: Unable to initialize backend 'cuda': all of its "
            "memory is in use; if other programs use its memory, end them; JAX_PLATFORMS=cpu "
            "computes without it\n",
        ),
        (KeyboardInterrupt(), 130, "thing.py: stopped; run the same command again to resume\n"),
        (Stopped("stopped after step 3", signal.SIGTERM), 143, "thing.py: stopped after step 3\n"),
    ],
)
def test_run_turns_the_outcome_into_a_status(call, raised, status, err):
    def main(arguments):
        assert arguments == ["a", "b=c"]
        if raised:
            raise raised

    assert call(main, "/some/where/thing.py", "a", "b=c") == (status, "", err)


def test_run_shows_the_traceback_of_a_bug(call):
    with pytest.raises(ZeroDivisionError):
        call(lambda _: 1 / 0, "thing.py")


def test_a_config_may_be_a_pipe(command):
    read_end, write_end = os.pipe()
    os.write(write_end, (ROOT / "configs/demo.yaml").read_bytes())
    os.close(write_end)
    out = command(train.main, "train.py", f"/dev/fd/{read_end}", "--print-config")
    os.close(read_end)
    assert out == dump(load(TrainingConfig, ROOT / "configs/demo.yaml"))


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/some/where/train.py", "demo"], "train.py"),
        (["/env/bin/rope-jax", "train", "demo"], "rope-jax train"),
        (["/env/bin/rope-jax", "--version"], "rope-jax"),
        (["/env/rope_jax/__main__.py", "train"], "rope-jax train"),
    ],
)
def test_messages_name_the_command_as_it_was_called(monkeypatch, argv, name):
    monkeypatch.setattr(sys, "argv", argv)
    assert program() == name


def test_the_next_command_is_never_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    cli.print_next("rope-jax sweep " + "x" * 100, "then")
    assert capsys.readouterr().out == f"next: rope-jax sweep {'x' * 100}\n      then\n"


# The installed command


@pytest.fixture
def installed(call, monkeypatch):
    """Return a function that runs rope-jax: (status, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "80")
    return partial(call, installed_main, "/env/bin/rope-jax")


def test_help_lists_every_command_in_a_line(installed):
    for words in ([], ["--help"]):
        status, out, err = installed(*words)
        assert (status, err) == (0, "")
        lines = out.splitlines()
        assert max(map(len, lines)) <= 80
        for name, command in COMMANDS.items():
            assert f"  {name:11}{command.__doc__.splitlines()[0]}" in lines
    assert installed("--version") == (0, f"rope-jax {__version__}\n", "")


def test_the_help_of_a_command_has_at_most_150_lines_at_80_columns(installed):
    for name in COMMANDS:
        status, out, err = installed(name, "--help")
        assert (status, err) == (0, "")
        assert out.startswith(f"usage: rope-jax {name} ")
        lines = out.splitlines()
        assert len(lines) <= 150
        assert max(map(len, lines)) <= 80
