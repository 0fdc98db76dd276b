"""The two recipes of docs/positions.md, followed to the letter in a copy of the repository."""

import csv
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.positions.maps import relative_positions
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

    def made(self):
        """Return the class."""
        names = {}
        exec(self.code, names)
        return names[class_in(self.code)]


MAP, ENCODING = Recipe("Add a map"), Recipe("Add an encoding")


def test_the_map_is_its_definition_and_reaches_what_its_test_says():
    map_ = MAP.made()
    names = {"parse": map_.model_validate, "pytest": pytest}
    exec(MAP.test, names)
    names["test_grouped_reaches_as_many_windows_as_a_group_has_tokens"]()
    places = np.arange(40)
    r = relative_positions(map_(group=4).bands(10, 40), places, places)
    definition, settings, numbers = eval(f"{{{MAP.example}}}")["grouped"]
    assert settings == {"group": 4}
    for i in range(40):
        for j in range(40):
            wanted = definition(i, j, *numbers) if j <= i else np.nan
            np.testing.assert_equal(r[i, j], wanted)
    assert np.nanmax(r) == 9


def test_the_encodings_scores_are_its_definition():
    encoding = ENCODING.made()(reach=8.0)
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 2, 5, 4)), rng.standard_normal((2, 1, 7, 4))
    wanted = np.einsum("bkgth,bksh->bkgts", q, k)
    wanted -= (np.arange(100, 105)[:, None] - np.arange(96, 103)) / 8
    single = (jnp.asarray(x, jnp.float32) for x in (q, k))
    found = encoding.scores({}, *single, jnp.arange(100, 105), jnp.arange(96, 103))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    # a static argument of the jitted model: one program for equal settings
    again = type(encoding)(reach=8.0)
    assert encoding.scores is again.scores is not type(encoding)(reach=9.0).scores


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
    readme, page = (copy / "README.md").read_text(), (copy / "docs/positions.md").read_text()
    assert "| `grouped` | ⌊i/G⌋ − ⌊j/G⌋ | `group` auto: n/L, rounded up | you, today |" in readme
    assert "| `recency` | Recency: logits q·k/√H − (i − j)/reach," in readme
    assert "| `grouped` | `group` | auto |" in page
    assert "| `recency` | none | no | no | any |" in page
    assert "| `recency` | `reach` | 32 |" in page
    assert '"grouped"' in (copy / "configs/schema/sweep.json").read_text()
    assert '"recency"' in (copy / "configs/schema/train.json").read_text()
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
