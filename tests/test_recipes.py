"""The documentation's recipes for a scaling, a map, an encoding, a protocol, a backend and a block.

All are followed to the letter in one copy of the repository, which is then checked once.
"""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.model import ModelConfig
from rope_jax.config.resolve import resolve_model
from rope_jax.model.decoder import DecoderInputs, LanguageModel
from rope_jax.protocols.base import streams_of
from rope_jax.rope import Frequencies, Rotary

ROOT = Path(__file__).parents[1]


class Recipe:
    """A recipe: its text, the files that it adds or extends, its code, and its commands."""

    def __init__(self, page: str, heading: str = "") -> None:
        text = (ROOT / page).read_text(encoding="utf-8")
        self.text = text.partition(f"## {heading}\n")[2].partition("\n## ")[0] if heading else text
        self.prose = re.sub(r"```.*?```", "", self.text, flags=re.DOTALL)
        paths = re.findall(r"`((?:rope_jax|tests)/[\w/]+\.py)`", self.prose)
        self.file, *self.others = (path for path in paths if path != self.registry)
        self.code, *self.tests = re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)
        lines = self.prose.splitlines()
        self.commands = [line.strip() for line in lines if line.startswith("    ")]

    @property
    def listing(self) -> tuple[str, str, str]:
        """The class, the file and the name of the registry that lists it."""
        prose = " ".join(self.prose.split())
        found = re.search(r"Import `(\w+)` in `(\S+)` and add it to `(\w+)`", prose)
        assert found is not None
        return found[1], found[2], found[3]

    @property
    def registry(self) -> str:
        return self.listing[1]

    def follow(self, copy: Path) -> None:
        """Write the recipe's file, list its class, add its example and its test."""
        (copy / self.file).write_text(self.code, encoding="utf-8")
        name, registry, variable = self.listing
        module = self.file.removesuffix(".py").replace("/", ".")
        path = copy / registry
        text = path.read_text(encoding="utf-8")
        text = re.sub("^from ", f"from {module} import {name}\nfrom ", text, count=1, flags=re.M)
        listed = rf"^({variable}: [^=]* = \(.*?),?\s*\)\n"
        text, count = re.subn(listed, rf"\1,\n    {name},\n)\n", text, flags=re.M | re.S)
        assert count == 1
        path.write_text(text, encoding="utf-8")
        for file, test in zip(self.others[-1:], self.tests, strict=True):
            before = (copy / file).read_text(encoding="utf-8") if (copy / file).exists() else ""
            (copy / file).write_text(f"{before}\n\n{test}".lstrip(), encoding="utf-8")

    def add_example(self, copy: Path, file: str, variable: str) -> None:
        """Add the recipe's example to a dictionary of a test."""
        found = re.search(rf'`("{Path(self.file).stem}": .*?,)`', " ".join(self.prose.split()))
        assert found is not None
        assert f"`{variable}`" in self.prose
        path = copy / file
        text = path.read_text(encoding="utf-8")
        assert text.count(f"{variable} = {{\n") == 1
        added = text.replace(f"{variable} = {{\n", f"{variable} = {{\n    {found[1]}\n")
        path.write_text(added, encoding="utf-8")


SCALING = Recipe("README.md", "Add a scaling")
MAP, ENCODING = (Recipe("docs/positions.md", f"Add {name}") for name in ("a map", "an encoding"))
PROTOCOL, BACKEND, BLOCK = (
    Recipe(f"docs/add-a-{name}.md") for name in ("protocol", "backend", "block")
)


# What the code of the pages computes


def run_code(code: str, **names: object) -> dict:
    exec(code, names)
    return names


def test_the_protocols_windows_are_what_the_page_says() -> None:
    protocol = run_code(PROTOCOL.code)["SecondHalf"]
    streams = streams_of([np.arange(100)], [0], "documents", "none", ())
    settings = {"targets": 4, "max_blocks": 1, "stride": 4, "seed": 0}
    windows = protocol(streams, lengths=[8, 32], **settings).windows(8)
    assert windows.start.tolist() == [0, 4, 8, 12, 16, 20, 24]
    assert set(windows.first.tolist()) == {5}


def test_the_feed_forwards_auxiliary_loss_is_that_of_a_balanced_router_at_first() -> None:
    block = run_code(BLOCK.code)["SoftMixture"].Config(balance=0.5)
    sizes = {"hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 3}
    config = ModelConfig(**sizes, num_attention_heads=2, attention="xla")
    rotary, tokens = Rotary.shared(Frequencies.from_float64(np.ones(2))), np.zeros((1, 5), np.int32)
    for layers in ("unrolled", "scanned"):
        made = config.model_copy(update={"feed_forward": block, "layers": layers})
        model = LanguageModel(resolve_model(made).spec(), 4)
        shapes = model.abstract_params()
        params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        windows = DecoderInputs(tokens, tokens, jnp.arange(5)[None], None, rotary)
        nll, auxiliary = jax.jit(model.nll_and_auxiliary)(params, windows)
        assert nll.shape == (1, 5)
        assert float(auxiliary) == pytest.approx(3 * 0.5)
    assert block.flops_per_token(made.spec()) == 2 * (8 * 2 + 2 * 3 * 8 * 6)


# In a copy


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the files that git tracks, beside a .venv that `make` takes for complete."""
    copy = tmp_path / "copy"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():  # unless deleted but not yet committed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    environment = copy / ".venv"
    environment.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (environment / name).symlink_to(Path(sys.prefix) / name)
    for name in (".created", ".runtime", ".dev"):  # last: newer than the lock files
        (environment / name).touch()
    if (ROOT / ".mypy_cache").exists():  # so that unchanged files need not be checked again
        shutil.copytree(ROOT / ".mypy_cache", copy / ".mypy_cache")
    (copy / "texts").mkdir()
    for index in range(10):
        (copy / f"texts/{index}.txt").write_text("rope turns slow\nfast " * (60 + index))
    (copy / "tiny.yaml").write_text(
        "name: demo\n"
        "model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, "
        "num_attention_heads: 2}\n"
        "stages: [{steps: 2, seq_len: 16, batch_size: 4}]\n"
        "optim: {warmup_steps: 1}\n"
        "data: {type: text, files: [texts/*], test_fraction: 0.4, validation_fraction: 0.2, "
        "cache_dir: cache}\n"
    )
    return copy


def run_command(command: str, copy: Path) -> str:
    """Run a line of shell in the copy as its reader would; return what it prints."""
    if command.startswith("make "):  # which must not install anything through the links to .venv
        assert subprocess.run(["make", "-q", ".venv/.dev"], cwd=copy).returncode == 0
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# Runs commands, lists of words, one after the other: modules are imported once.
IN_ONE_PROCESS = """
import json, sys
from rope_jax.commands.main import run
for words in json.loads(sys.argv[1]):
    sys.argv = ["rope-jax", *words]
    try:
        run()
    except SystemExit as stop:
        assert not stop.code, words
"""


def run_together(commands: list[str], copy: Path) -> str:
    """Run several commands in one process; return what they print."""
    words = [shlex.split(command.removeprefix(".venv/bin/rope-jax ")) for command in commands]
    arguments = shlex.join(["-c", IN_ONE_PROCESS, json.dumps(words)])
    return run_command(f".venv/bin/python {arguments}", copy)


def losses(copy: Path, run: str) -> list[float]:
    lines = (copy / f"runs/{run}/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    values = [json.loads(line).get("train/loss") for line in lines]
    found = [value for value in values if value is not None]
    assert found
    return found


@pytest.mark.slow
def test_following_all_recipes_adds_what_works(copy: Path) -> None:
    for recipe in (SCALING, MAP, ENCODING, PROTOCOL, BACKEND, BLOCK):
        recipe.follow(copy)
    SCALING.add_example(copy, "tests/rope/test_strategies.py", "SETTINGS")
    MAP.add_example(copy, "tests/positions/maps/test_maps.py", "DEFINITIONS")
    ENCODING.add_example(copy, "tests/positions/encodings/dense.py", "SETTINGS")

    make, *_ = SCALING.commands
    assert make == MAP.commands[0] == ENCODING.commands[0] == PROTOCOL.commands[0]
    run_command(make, copy)
    readme, page = (copy / "README.md").read_text(), (copy / "docs/positions.md").read_text()
    assert "| `half` | Position interpolation of the slower" in readme
    assert "| `half` | `factor` |" in (copy / "docs/scalings.md").read_text()
    assert "| `grouped` | ⌊i/G⌋ − ⌊j/G⌋ | `group` auto: n/L, rounded up | you, today |" in page
    assert "| `recency` | Recency: logits q·k/√H − (i − j)/reach," in page

    # Of the tests that the pages name, those of what was added.
    tests = "tests/rope/test_strategies.py tests/positions tests/protocols tests/attention"
    tests += f" {BLOCK.others[-1]}"
    added = "half or grouped or recency or second_half or fused or mixture"
    found = run_command(f".venv/bin/python -m pytest -n 0 -q {tests} -k '{added}'", copy)
    assert int(re.search(r"(\d+) passed", found)[1]) > 20

    # Each page's training, with a smaller config.
    pages = [c for r in (BACKEND, BLOCK, ENCODING) for c in r.commands if "rope-jax train" in c]
    pages = [command.replace("configs/demo.yaml", "tiny.yaml") for command in pages]
    (on_four,) = (command for command in pages if command.startswith("XLA_FLAGS"))
    pages.remove(on_four)
    assert len(pages) == 3
    run_together([".venv/bin/rope-jax train tiny.yaml", *pages], copy)
    run_command(on_four, copy)
    assert losses(copy, "fused") == pytest.approx(losses(copy, "demo"), rel=1e-5)
    assert losses(copy, "four") == pytest.approx(losses(copy, "one"), rel=1e-5)
    for run in ("one", "near"):
        assert np.isfinite(losses(copy, run)).all()
        assert losses(copy, run) != losses(copy, "demo")

    # The pages' sweeps at once.
    entries = [re.search(r"scalings=\[trained, (.*)\]'", r.commands[-1])[1] for r in (SCALING, MAP)]
    protocols = PROTOCOL.commands[-1].split(" ", 3)[3]
    scalings = f"'scalings=[trained, {', '.join(entries)}]'"
    sweep = f"sweep runs/demo {scalings} {protocols} 'lengths=[8, 16, 32]'"
    topics = ("rope.scaling half", "model.attention fused", "model.feed_forward soft_mixture")
    helps = [f"train --help {topic.split()[0]}" for topic in topics]
    said = " ".join(run_together([sweep, *helps], copy).split())
    assert "perplexity by length of windows that overlap by half" in said
    assert all(topic.split()[1] in said.partition("results.csv")[2] for topic in topics)
    with (copy / "runs/demo/evals/sweep/results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    same = {(row["name"], row["length"]): row for row in rows if row["protocol"] == "same_tokens"}
    halves = [row for row in rows if row["protocol"] == "second_half"]
    strides = {(row["length"], row["stride"]) for row in halves}
    assert strides == {("8", "4"), ("16", "8"), ("32", "16")}
    (half,) = {name for name, _ in same if "half" in name}
    (grouped,) = {name for name, _ in same if "grouped" in name}
    assert [same[half, n]["factor"] for n in ("8", "16", "32")] == ["1.0", "1.0", "2.0"]
    assert [same[grouped, n]["map"] for n in ("8", "16", "32")] == ["", "", "grouped+group=2"]
    assert len({same[name, "32"]["nll"] for name in (half, grouped, "trained")}) == 3
