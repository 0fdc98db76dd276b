"""What all commands share: help, the resolved config, overrides, and how they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

import eval_ppl
import train
from rope_jax import cli
from rope_jax.config.key_help import key_overview, key_section
from rope_jax.config.load import dump, load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.errors import Stopped, UserError

ROOT = Path(__file__).parent.parent
MAINS = {"train.py": train.main, "eval_ppl.py": eval_ppl.main}


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command in this process; return its stdout.

    tests/test_bad_input.py starts a process, and tests/test_imports.py sees what they import.
    """
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")

    def command(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.run(MAINS[script])
        shown = capsys.readouterr()
        assert (ended.value.code or 0, shown.err) == (0, "")
        return shown.out

    return command


def test_help_lists_the_keys_and_says_all_about_one(command):
    out = command("train.py", "--help")
    assert out.startswith("usage: train.py CONFIG.yaml [key=value ...]\n")
    assert "\n".join(key_overview(Config, "train.py", 80)) in out
    out = command("eval_ppl.py", "--help", "scalings.N")
    assert out.splitlines() == key_section(SweepConfig, "scalings.N", 80)
    assert "\n  yarn: YaRN: θ for fast pairs" in out


def test_the_printed_config_gives_the_same_run_or_sweep(command, tmp_path):
    overrides = ["seed=5", "name=b=c"]
    # the run of the sweep does not exist: only the sweep is read
    for schema, words in {
        Config: ["train.py", "configs/demo.yaml", *overrides, "--print-config"],
        SweepConfig: ["eval_ppl.py", "--print-config", "runs/none", "--sweep", "demo", *overrides],
    }.items():
        (tmp_path / "again.yaml").write_text(command(*words))
        folder = ROOT / "configs" / ("sweeps" if schema is SweepConfig else "")
        wanted = load(schema, folder / "demo.yaml", overrides)
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
        (KeyboardInterrupt(), 130, "thing.py: stopped; run the same command again to resume\n"),
        (Stopped("stopped after step 3", signal.SIGTERM), 143, "thing.py: stopped after step 3\n"),
    ],
)
def test_run_turns_the_outcome_into_a_status(monkeypatch, capsys, raised, status, err):
    monkeypatch.setattr(sys, "argv", ["/some/where/thing.py", "a", "b=c"])

    def main(arguments):
        assert arguments == ["a", "b=c"]
        if raised:
            raise raised

    with pytest.raises(SystemExit) as caught:
        cli.run(main)
    assert caught.value.code == status
    assert capsys.readouterr() == ("", err)


def test_run_shows_the_traceback_of_a_bug(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["thing.py"])
    with pytest.raises(ZeroDivisionError):
        cli.run(lambda _: 1 / 0)


def test_help_shows_brackets_and_backslashes_as_they_are(capsys):
    class Schema(BaseModel):
        key: str = Field(r"C:\[red]x", description=r"[bold]a[/], [/] and :smile: \[b]")

    parser = cli.parser("WORD", "About.", Schema)
    for words in (["--help"], ["--help", "key"]):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
        out = " ".join(capsys.readouterr().out.split())
        assert r"key: str = C:\[red]x [bold]a[/], [/] and :smile: \[b]" in out


def test_a_config_may_be_a_pipe(command):
    read_end, write_end = os.pipe()
    os.write(write_end, (ROOT / "configs/demo.yaml").read_bytes())
    os.close(write_end)
    out = command("train.py", f"/dev/fd/{read_end}", "--print-config")
    os.close(read_end)
    assert out == dump(load(Config, ROOT / "configs/demo.yaml"))


def test_the_next_command_is_never_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    cli.print_next("rope-jax sweep " + "x" * 100, "then")
    assert capsys.readouterr().out == f"next: rope-jax sweep {'x' * 100}\n      then\n"
