"""The two recipes of docs/positions.md, followed to the letter in a copy of the repository."""

import csv
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.positions.maps import relative_positions
from tests.recipes import copy_repository, replace_once, runner

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/positions.md").read_text(encoding="utf-8")
TRAINING = [
    "name=tiny",
    "model={hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}",
    "stages=[{steps: 2, seq_len: 16, batch_size: 4}]",
    "optim.warmup_steps=1",
    "data={type: text, files: [texts/*], test_fraction: 0.4, validation_fraction: 0.2, "
    "cache_dir: cache}",
]


class Recipe:
    """A recipe's parts: a file and its code, the class to list, an example, and a test."""

    def __init__(self, heading):
        text = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        self.file = re.search(r"in a file of its own, `(\S+)`", text)[1]
        self.code, self.test = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.name = re.search(r"^class (\w+)", self.code, re.MULTILINE)[1]
        self.type = Path(self.file).stem
        prose = text.replace("\n", " ")
        self.list = re.search(rf"Import `{self.name}` in `(\S+)` and add it to `_ALL`", prose)[1]
        self.example = re.search(rf'`("{self.type}": .*?,)`', prose)[1]

    def made(self):
        """Return the class."""
        names = {}
        exec(self.code, names)
        return names[self.name]


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
    (copy / recipe.file).write_text(recipe.code, encoding="utf-8")
    registry = copy / recipe.list
    module = recipe.file.removesuffix(".py").replace("/", ".")
    text = registry.read_text(encoding="utf-8")
    first_import = re.search(r"^from rope_jax.*$", text, re.MULTILINE)[0]
    replace_once(registry, first_import, f"{first_import}\nfrom {module} import {recipe.name}")
    listed = re.search(r"^_ALL: .* = \((.*?)\)\n", text, re.MULTILINE | re.DOTALL)[1]
    replace_once(registry, f"({listed})", f"({listed.rstrip().rstrip(',')}, {recipe.name})")
    replace_once(
        copy / example_in, f"{examples} = {{\n", f"{examples} = {{\n    {recipe.example}\n"
    )
    with (copy / test_in).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{recipe.test}")


@pytest.fixture
def copy(tmp_path):
    """Copy the repository's tracked files and follow both recipes."""
    copy = tmp_path / "copy"
    copy_repository(copy)
    maps = "tests/positions/maps/test_maps.py"
    follow(MAP, copy, maps, "DEFINITIONS", maps)
    encodings = "tests/positions/encodings"
    follow(ENCODING, copy, f"{encodings}/dense.py", "SETTINGS", f"{encodings}/test_definitions.py")
    return copy


@pytest.mark.slow
def test_following_the_recipes_adds_a_working_map_and_encoding(copy, tmp_path):
    run = runner(copy)
    # imports and lists in ruff's order and form, as an editor would leave them
    registries = [MAP.list, ENCODING.list]
    run("-m", "ruff", "check", "-q", "--fix", "--select", "I", *registries)
    run("-m", "ruff", "format", "-q", *registries)
    run("scripts/generate.py")
    run("scripts/generate.py", "--check")
    readme, page = (copy / "README.md").read_text(), (copy / "docs/positions.md").read_text()
    assert "| `grouped` | ⌊i/G⌋ − ⌊j/G⌋ | `group` auto: n/L, rounded up | you, today |" in readme
    assert "| `recency` | Recency: logits q·k/√H − (i − j)/reach," in readme
    assert "| `grouped` | `group` | auto |" in page
    assert "| `recency` | none | no | no | any |" in page
    assert "| `recency` | `reach` | 32 |" in page
    assert '"grouped"' in (copy / "configs/schema/sweep.json").read_text()
    assert '"recency"' in (copy / "configs/schema/train.json").read_text()
    run("-m", "ruff", "check", *registries, MAP.file, ENCODING.file)
    run("-m", "ruff", "format", "--check", MAP.file, ENCODING.file)
    tests = ["tests/positions", "tests/inspection/test_maps.py", "tests/test_bad_input.py"]
    run("-m", "pytest", "-n", "0", "-q", *tests)

    rng = np.random.default_rng(0)
    (tmp_path / "texts").mkdir()
    for index in range(10):
        text = "".join(rng.choice(["rope ", "turns ", "slow\n", "fast "], 60))
        (tmp_path / "texts" / f"{index}.txt").write_text(text)
    (tmp_path / "run.yaml").write_text("stages: []\n")

    def swept(run_name, *words, scalings):
        run(str(copy / "train.py"), "run.yaml", *TRAINING, *words, folder=tmp_path)
        sweep = [f"scalings={scalings}", "lengths=[16, 32]"]
        run(str(copy / "eval_ppl.py"), f"runs/{run_name}", *sweep, folder=tmp_path)
        with (tmp_path / f"runs/{run_name}/evals/sweep/results.csv").open(newline="") as file:
            return {(row["name"], row["length"]): row for row in csv.DictReader(file)}

    rows = swept("tiny", scalings="[trained, {type: none, map: {type: grouped}}]")
    maps = {key: row["map"] for key, row in rows.items() if key[0] != "trained"}
    name = "none-grouped"
    assert maps == {(name, "16"): "", (name, "32"): "grouped+group=2"}
    assert rows[name, "32"]["nll"] != rows["trained", "32"]["nll"]
    position = "model.position={type: recency, reach: 8}"
    rows = swept("near", position, "name=near", scalings="[trained]")
    assert np.isfinite([float(row["nll"]) for row in rows.values()]).all()
    run("scripts/show_maps.py", "maps=[grouped]", f"output={tmp_path}/maps.png")
