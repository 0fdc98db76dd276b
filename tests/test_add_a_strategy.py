"""The README's recipe for a new scaling, followed to the letter in a copy of the repository."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry
from tests.recipes import copy_repository, replace_once, runner

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECIPE = README.partition("### Add one\n")[2].partition("\n## ")[0]
FILE = re.search(r"in a file of its own, `(\S+)`", RECIPE)[1]
STRATEGY, GOLDEN_TEST = re.findall(r"```python\n(.*?)```", RECIPE, re.DOTALL)
NAME = re.search(r"^class (\w+)", STRATEGY, re.MULTILINE)[1]
TRAINING = [
    "name=tiny",
    "model={hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}",
    "stages=[{steps: 2, seq_len: 16, batch_size: 4}]",
    "optim.warmup_steps=1",
    "data={type: text, files: [texts/*], test_fraction: 0.4, validation_fraction: 0.2, "
    "cache_dir: cache}",
]


def test_the_strategy_gives_the_golden_values_beside_it() -> None:
    names: dict = {"RotaryGeometry": RotaryGeometry}
    exec(STRATEGY, names)
    names["parse_scaling"] = names[NAME].model_validate

    def assert_golden(frequencies, golden: dict[int, float]) -> None:
        np.testing.assert_allclose(frequencies.inv_freq, list(golden.values()), rtol=1e-6)

    names["assert_golden"] = assert_golden
    exec(GOLDEN_TEST, names)
    names["test_half_golden"]()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the repository's tracked files and make the recipe's edits."""
    copy = tmp_path / "copy"
    copy_repository(copy)
    (copy / FILE).write_text(STRATEGY, encoding="utf-8")
    registry = copy / re.search(rf"Import `{NAME}` in `(\S+)`", RECIPE)[1]
    module = FILE.removesuffix(".py").replace("/", ".")
    after = "from rope_jax.rope.strategies.explicit import ExplicitScaling\n"
    replace_once(registry, after, f"{after}from {module} import {NAME}\n")
    replace_once(registry, "    ExplicitScaling,\n)", f"    ExplicitScaling,\n    {NAME},\n)")
    tests = copy / "tests/rope/test_strategies.py"
    example = re.search(r'add an example, `("half": .*?)`', RECIPE.replace("\n", " "))[1]
    replace_once(tests, "SETTINGS = {\n", f"SETTINGS = {{\n    {example}\n")
    tests.write_text(f"{tests.read_text(encoding='utf-8')}\n\n{GOLDEN_TEST}", encoding="utf-8")
    return copy


@pytest.mark.slow
def test_following_the_recipe_adds_a_working_strategy(copy: Path, tmp_path: Path) -> None:
    run = runner(copy)
    run("scripts/generate.py")
    run("scripts/generate.py", "--check")
    assert "| `half` | Position interpolation of the slower" in (copy / "README.md").read_text()
    assert "| `half` | `factor` |" in (copy / "docs/scalings.md").read_text()
    assert '"half"' in (copy / "configs/schema/sweep.json").read_text()
    run("-m", "ruff", "check", ".")
    run("-m", "ruff", "format", "--check", ".")
    run("-m", "pytest", "-n", "0", "-q", "tests/rope", "tests/config", "tests/test_bad_input.py")

    rng = np.random.default_rng(0)
    (tmp_path / "texts").mkdir()
    for index in range(10):
        text = "".join(rng.choice(["rope ", "turns ", "slow\n", "fast "], 60))
        (tmp_path / "texts" / f"{index}.txt").write_text(text)
    (tmp_path / "run.yaml").write_text("stages: []\n")
    run(str(copy / "train.py"), "run.yaml", *TRAINING, folder=tmp_path)
    sweep = ["scalings=[trained, {type: half, factor: auto}]", "lengths=[16, 32]"]
    run(str(copy / "eval_ppl.py"), "runs/tiny", *sweep, folder=tmp_path)
    with (tmp_path / "runs/tiny/evals/sweep/results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["scaling"] == "half"]
    assert [(row["length"], row["factor"]) for row in rows] == [("16", "1.0"), ("32", "2.0")]
