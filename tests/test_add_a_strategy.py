"""The README's recipe for a new scaling, followed to the letter in a copy of the repository."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry
from tests.recipes import (
    add_class,
    append,
    class_in,
    code_in,
    commands_in,
    copy,
    replace_once,
    run_command,
    train_small_demo,
)

__all__ = ["copy"]

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECIPE = README.partition("## Add a scaling\n")[2].partition("\n## ")[0]
PROSE = RECIPE.replace("\n", " ")
FILE = re.search(r"in a file of its own, `(\S+)`", RECIPE)[1]
STRATEGY, GOLDEN_TEST = code_in(RECIPE)


def test_the_strategy_gives_the_golden_values_beside_it() -> None:
    names: dict = {"RotaryGeometry": RotaryGeometry}
    exec(STRATEGY, names)
    names["parse_scaling"] = names[class_in(STRATEGY)].model_validate

    def assert_golden(frequencies, golden: dict[int, float]) -> None:
        np.testing.assert_allclose(frequencies.inv_freq, list(golden.values()), rtol=1e-6)

    names["assert_golden"] = assert_golden
    exec(GOLDEN_TEST, names)
    names["test_half_golden"]()


@pytest.mark.slow
def test_following_the_recipe_adds_a_working_strategy(copy: Path) -> None:
    add_class(copy, FILE, STRATEGY, RECIPE)
    found = re.search(r'In `(\S+)`, add an example, `("half": .*?)`, to `SETTINGS`', PROSE)
    replace_once(copy / found[1], "SETTINGS = {\n", f"SETTINGS = {{\n    {found[2]}\n")
    append(copy / found[1], GOLDEN_TEST)
    train_small_demo(copy)
    commands = commands_in(RECIPE)
    assert [command.split()[:2] for command in commands] == [
        ["make", "format"],
        [".venv/bin/python", "-m"],
        [".venv/bin/python", "eval_ppl.py"],
    ]
    said = [run_command(command, copy) for command in commands]
    assert " passed" in said[1]
    assert "| `half` | Position interpolation of the slower" in (copy / "README.md").read_text()
    assert "| `half` | `factor` |" in (copy / "docs/scalings.md").read_text()
    with (copy / "runs/demo/evals/sweep/results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["scaling"] == "half"]
    assert [(row["length"], row["factor"]) for row in rows[:3]] == [
        *(("8", "1.0"), ("16", "1.0"), ("32", "2.0")),
    ]
    assert "half" in run_command(".venv/bin/python train.py --help rope.scaling", copy)
