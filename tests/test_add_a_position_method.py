"""The two recipes of docs/positions.md, followed to the letter in a copy of the repository."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from tests.recipes import (
    add_class,
    append,
    code_in,
    commands_in,
    copy,
    replace_once,
    run_command,
    train_small_demo,
)

__all__ = ["copy"]

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/positions.md").read_text(encoding="utf-8")


class Recipe:
    """A recipe's parts: a file and its code, an example, and a test."""

    def __init__(self, heading):
        self.text = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        self.file = re.search(r"in a file of its own, `(\S+)`", self.text)[1]
        self.commands = commands_in(self.text)
        self.code, self.test = code_in(self.text)
        prose = self.text.replace("\n", " ")
        self.example = re.search(rf'`("{Path(self.file).stem}": .*?,)`', prose)[1]


MAP, ENCODING = Recipe("Add a map"), Recipe("Add an encoding")


def follow(recipe, copy, example_in, examples, test_in):
    """Make a recipe's edits."""
    add_class(copy, recipe.file, recipe.code, recipe.text)
    place = copy / example_in
    replace_once(place, f"{examples} = {{\n", f"{examples} = {{\n    {recipe.example}\n")
    append(copy / test_in, recipe.test)


@pytest.mark.slow
def test_following_the_recipes_adds_a_working_map_and_encoding(copy):
    maps, encodings = "tests/positions/maps/test_maps.py", "tests/positions/encodings"
    follow(MAP, copy, maps, "DEFINITIONS", maps)
    follow(ENCODING, copy, f"{encodings}/dense.py", "SETTINGS", f"{encodings}/test_definitions.py")
    train_small_demo(copy)
    make, tests, show, sweep = MAP.commands
    made_again, tests_again, train = ENCODING.commands
    assert (make, tests.split()[:-1]) == (made_again, tests_again.split())
    run_command(make, copy)
    page = (copy / "docs/positions.md").read_text()
    assert "| `grouped` | ⌊i/G⌋ − ⌊j/G⌋ | `group` auto: n/L, rounded up | you, today |" in page
    assert "| `recency` | Recency: logits q·k/√H − (i − j)/reach," in page
    assert "| `grouped` | `group` | auto |" in page
    assert "| `recency` | none | no | no | any |" in page
    assert "| `recency` | `reach` | 32 |" in page
    assert " passed" in run_command(tests, copy)

    run_command(show, copy)
    assert (copy / "maps.png").exists()
    run_command(sweep, copy)
    rows = swept(copy, "demo")
    name = "grouped"
    maps = {int(n): row["map"] for (label, n), row in rows.items() if label == name}
    assert maps[8] == maps[16] == ""
    assert maps[32] == "grouped+group=2"
    assert rows[name, "32"]["nll"] != rows["trained", "32"]["nll"]

    command, config, *words = train.split(" ", 3)[1:]
    assert (command, config) == ("train.py", "configs/demo.yaml")
    train_small_demo(copy, *words)
    run_command(".venv/bin/python eval_ppl.py runs/near 'scalings=[trained]'", copy)
    assert np.isfinite([float(row["nll"]) for row in swept(copy, "near").values()]).all()


def swept(copy, run):
    """Return the rows of a run's sweep by curve and length."""
    with (copy / f"runs/{run}/evals/sweep/results.csv").open(newline="") as file:
        return {(row["name"], row["length"]): row for row in csv.DictReader(file)}
