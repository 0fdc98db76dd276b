"""The installed command: its list of commands, their help, and what it says to a wrong name."""

import sys

import pytest

from rope_jax import __version__
from rope_jax.commands import main
from rope_jax.invocation import COMMANDS


@pytest.fixture
def call(monkeypatch, capsys):
    """Return a function that runs rope-jax in this process: (status, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["/env/bin/rope-jax", *words])
        with pytest.raises(SystemExit) as caught:
            main.run()
        return caught.value.code, *capsys.readouterr()

    return call


def test_help_lists_every_command_in_a_line(call):
    for words in ([], ["--help"]):
        status, out, err = call(*words)
        assert (status, err) == (0, "")
        lines = out.splitlines()
        assert max(map(len, lines)) <= 80
        for name, command in COMMANDS.items():
            assert f"  {name:11}{command.about}" in lines
    assert call("--version") == (0, f"rope-jax {__version__}\n", "")


def test_the_help_of_a_command_has_at_most_150_lines_at_80_columns(call):
    for name in COMMANDS:
        status, out, err = call(name, "--help")
        assert (status, err) == (0, "")
        assert out.startswith(f"usage: rope-jax {name} ")
        lines = out.splitlines()
        assert len(lines) <= 150
        assert max(map(len, lines)) <= 80


def test_an_error_is_one_line_that_begins_with_the_command_as_it_was_called(call):
    assert call("swep") == (2, "", "rope-jax: swep: unknown command; did you mean sweep?\n")
    there = f"there are {', '.join(COMMANDS)}"
    assert call("xyz") == (2, "", f"rope-jax: xyz: unknown command; {there}\n")
    status, out, err = call("train", "dmo")
    assert (status, out) == (2, "")
    assert err.startswith("rope-jax train: dmo: no such file, and no config has that name; did ")
    says = "rope-jax sweep: argument --sweep: expected one argument; see rope-jax sweep --help\n"
    assert call("sweep", "--sweep") == (2, "", says)
