"""Commands are named as the user called them."""

import sys
from pathlib import Path

import pytest

from rope_jax import invocation
from rope_jax.checkpoints.files import open_checkpoint
from rope_jax.errors import UserError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def called(monkeypatch):
    """Return a function that sets the command line of this process."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", "/env/bin/python")
    monkeypatch.setattr("shutil.which", lambda name: f"/env/bin/{name}")
    return lambda *words: monkeypatch.setattr(sys, "argv", list(words))


def test_lines_are_written_as_the_command_was_called(called):
    for argv, program, line in [
        (["train.py", "a.yaml"], "train.py", "python eval_ppl.py runs/a"),
        (["scripts/compare.py"], "compare.py", "python eval_ppl.py runs/a"),
        (["/opt/r j/train.py"], "train.py", "python '/opt/r j/eval_ppl.py' runs/a"),
        (["/env/bin/rope-jax", "train", "demo"], "rope-jax train", "rope-jax sweep runs/a"),
        (["/env/bin/rope-jax", "trian"], "rope-jax", "rope-jax sweep runs/a"),
        (
            [str(ROOT / "rope_jax/__main__.py"), "train"],
            "rope-jax train",
            "python -m rope_jax sweep runs/a",
        ),
    ]:
        called(*argv)
        assert invocation.program() == program
        assert invocation.command_line("sweep", "runs/a") == line


def test_a_python_that_the_shell_does_not_find_is_named_by_its_path(called, monkeypatch):
    called("train.py")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert invocation.command_line("sweep", "runs/a") == "/env/bin/python eval_ppl.py runs/a"
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv/bin/python"))
    assert invocation.command_line("sweep", "runs/a") == ".venv/bin/python eval_ppl.py runs/a"


def test_every_command_has_a_script_and_a_module():
    for name, command in invocation.COMMANDS.items():
        script = (ROOT / command.script).read_text()
        module = {"import": "importing", "export": "exporting"}.get(name, name.replace("-", "_"))
        assert f"from rope_jax.commands.{module} import main" in script


def test_tensorboard_is_a_target_in_the_repository_alone(called, monkeypatch):
    called("eval_ppl.py")
    assert invocation.tensorboard_line("runs/a") == "make tensorboard RUNS=runs/a"
    assert invocation.tensorboard_line("runs/a b") == "tensorboard --logdir 'runs/a b'"
    called("/env/bin/rope-jax", "sweep")
    assert invocation.tensorboard_line("runs/a") == "tensorboard --logdir runs/a"
    monkeypatch.setattr(invocation, "is_installed", lambda package: False)
    install = "python -m pip install 'rope-jax[tensorboard]'"
    assert invocation.tensorboard_line("runs/a") == f"{install} && tensorboard --logdir runs/a"


def test_a_missing_extra_is_named(called, monkeypatch):
    called("/env/bin/rope-jax", "sweep")
    monkeypatch.delitem(sys.modules, "rope_jax.checkpoints.gguf.files", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError) as error:
        open_checkpoint("m.gguf", None)
    install = "python -m pip install 'rope-jax[gguf]'"
    assert str(error.value) == f"m.gguf: GGUF needs the package gguf; install it with {install}"


def test_a_page_is_opened_by_its_address(called, tmp_path):
    called("scripts/compare.py")
    page = tmp_path / "a b" / "comparison.html"
    assert invocation.browser_line(page) == f"python -m webbrowser {page.as_uri()}"
