"""The recipes for a backend and a feed-forward, followed in a copy of the repository."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.model import ModelConfig
from rope_jax.model.decoder import LanguageModel
from rope_jax.model.resolve import resolve_model
from rope_jax.rope import Frequencies, Rotary
from tests.recipes import add_class, code_in, commands_in, copy, run_command, train_small_demo

__all__ = ["copy"]

ROOT = Path(__file__).parents[1]
BACKEND, BLOCK = (
    (ROOT / f"docs/add-a-{name}.md").read_text(encoding="utf-8") for name in ("backend", "block")
)


def follow(page: str, copy: Path) -> None:
    """Write a recipe's files and list its class."""
    files = re.findall(r"`((?:rope_jax|tests)/[\w/]+\.py)`", page.replace("\n", " "))
    file, *others = (file for file in files if not file.endswith("__init__.py"))
    code, *tests = code_in(page)
    add_class(copy, file, code, page)
    for other, test in zip(others, tests, strict=True):
        (copy / other).write_text(test, encoding="utf-8")


def test_the_feed_forwards_auxiliary_loss_is_that_of_a_balanced_router_at_first() -> None:
    names: dict = {}
    exec(code_in(BLOCK)[0], names)
    sizes = {"hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 2, "initializer_range": 1e-6}
    config = ModelConfig(**sizes, attention="xla")
    rotary = Rotary.shared(Frequencies.from_float64(np.ones(2)))
    tokens = jnp.zeros((1, 5), jnp.int32)
    for layers in ("unrolled", "scanned"):
        block = names["SoftMixture"](balance=0.5)
        made = config.model_copy(update={"feed_forward": block, "layers": layers})
        model = LanguageModel(resolve_model(made), 4)
        given = tokens, tokens, jnp.arange(5)[None], None, rotary
        nll, auxiliary = jax.jit(model.nll_and_auxiliary)(model.init(0), *given)
        assert nll.shape == (1, 5)
        assert float(auxiliary) == pytest.approx(3 * 0.5)
    assert block.flops_per_token(made) == 2 * (8 * 2 + 4 * 8 * 6)


@pytest.mark.slow
def test_following_the_recipe_adds_a_working_backend(copy: Path) -> None:
    follow(BACKEND, copy)
    tests, train = commands_in(BACKEND)
    assert " passed" in run_command(tests, copy)
    train_small_demo(copy, "name=xla model.attention=xla")
    train_small_demo(copy, *train.split()[3:])
    assert losses(copy, "fused") == pytest.approx(losses(copy, "xla"), rel=1e-5)
    assert "fused" in run_command(".venv/bin/python train.py --help model.attention", copy)


@pytest.mark.slow
def test_following_the_recipe_adds_a_working_feed_forward(copy: Path) -> None:
    follow(BLOCK, copy)
    train_small_demo(copy)  # its config, and that the default still trains
    for command in commands_in(BLOCK):
        run_command(command.replace("configs/demo.yaml", "tiny.yaml"), copy)
    assert losses(copy, "four") == pytest.approx(losses(copy, "one"), rel=1e-5)
    assert losses(copy, "one") != pytest.approx(losses(copy, "demo"), rel=1e-5)


def losses(copy: Path, run: str) -> list[float]:
    lines = (copy / f"runs/{run}/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    values = [line["train/loss"] for line in found if "train/loss" in line]
    assert values
    return values
