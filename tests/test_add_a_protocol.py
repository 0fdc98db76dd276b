"""docs/add-a-protocol.md, followed to the letter in a copy of the repository."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from rope_jax.protocols.windows import streams_of
from tests.recipes import (
    add_class,
    append,
    class_in,
    code_in,
    commands_in,
    copy,
    run_command,
    train_small_demo,
)

__all__ = ["copy"]

ROOT = Path(__file__).parents[1]
RECIPE = (ROOT / "docs/add-a-protocol.md").read_text(encoding="utf-8")
FILE = re.search(r"in a file of its own, here `(\S+)`", RECIPE.replace("\n", " "))[1]
PROTOCOL, TEST = code_in(RECIPE)
DRAWN = """
import jax.numpy as jnp, numpy as np
from rope_jax.evaluation import sweep
from rope_jax.rope import RotaryGeometry
result = sweep(
    lambda params, tokens, rotary: jnp.ones(tokens[:, 1:].shape, jnp.float32),
    ["trained"], [8, 16], [np.arange(40)], params={}, geometry=RotaryGeometry(8, 1e4), window=16,
    protocols=["same_tokens", "second_half"], bos="none",
)
print([axis.get_title() for axis in result.plot().axes])
"""


def test_its_windows_are_what_the_page_says():
    names: dict = {}
    exec(PROTOCOL, names)
    streams = streams_of([np.arange(100)], [0], "documents", "none", None)
    settings = {"targets": 4, "max_blocks": 1, "stride": 4, "seed": 0}
    windows = names[class_in(PROTOCOL)](streams, lengths=[8, 32], **settings).windows(8)
    assert windows.start.tolist() == [0, 4, 8, 12, 16, 20, 24]
    assert set(windows.first.tolist()) == {5}


@pytest.mark.slow
def test_following_the_recipe_adds_a_working_protocol(copy: Path) -> None:
    add_class(copy, FILE, PROTOCOL, RECIPE)
    append(
        copy / re.search(r"At the end of `(\S+)`, add a test", RECIPE.replace("\n", " "))[1], TEST
    )
    train_small_demo(copy)
    commands = commands_in(RECIPE)
    assert [command.split()[:2] for command in commands] == [
        ["make", "format"],
        [".venv/bin/python", "-m"],
        [".venv/bin/python", "eval_ppl.py"],
    ]
    _, tests, sweep = [run_command(command, copy) for command in commands]
    assert " passed" in tests
    title = "perplexity by length of windows that overlap by half; second_half"
    assert title in " ".join(sweep.split())
    folder = copy / "runs/demo/evals/sweep"
    with (folder / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["protocol"] == "second_half"]
    assert {(row["length"], row["stride"]) for row in rows} >= {("8", "4"), ("256", "128")}
    assert {row["first_position"] for row in rows if row["length"] == "8"} == {"5"}
    assert "length of windows that overlap by half, on the second half of each" in " ".join(
        (folder / "results.md").read_text(encoding="utf-8").split()
    )
    (copy / "drawn.py").write_text(DRAWN)
    drawn = run_command(".venv/bin/python drawn.py", copy)
    assert "the second half of every window" in drawn.replace("\\n", " ")
