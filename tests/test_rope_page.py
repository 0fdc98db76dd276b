"""docs/rope.md: its numbers are recomputed, its example runs, and its figures have their commands.

tests/rope/test_forms.py checks its proofs.
"""

import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from rope_jax.config.inspection import KNOWN_MODELS, BaseConfig, DecayConfig, TurnsConfig
from rope_jax.config.load import load
from rope_jax.config.training import Config
from rope_jax.inspection.geometries import Geometry
from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling
from rope_jax.rope.decay import decay_scores, mean_and_peak_by_octave, octave_means, octaves

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/rope.md").read_text(encoding="utf-8")
GEOMETRY = RotaryGeometry(64, 1e4, 4096)


@pytest.fixture(scope="module")
def known():
    return {model.name: Geometry(model) for model in KNOWN_MODELS}


def row(*cells):
    return f"| {' | '.join(cells)} |".replace("-0.", "−0.")


def rows_below(heading):
    """Return the rows of the table whose first row begins with `heading`."""
    table = PAGE.partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    return table.split("\n")[2:]


def short(error):
    """Format an error as the page does: 4.3e-5, 0.35."""
    return f"{error:.2f}" if error >= 0.05 else f"{error:.1e}".replace("e-0", "e-")


def test_the_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(example, names)
    assert names["a"].shape == (10, 80)


def test_every_figure_exists_below_the_command_that_draws_it():
    found = re.findall(r"\n    python (scripts/\w+\.py)\n\n!\[.*?\]\((.*?)\)", PAGE)
    assert found == [
        ("scripts/plot_decay.py", "figures/rope-decay.png"),
        ("scripts/plot_base.py", "figures/rope-base.png"),
        ("scripts/plot_turns.py", "figures/rope-turns.png"),
    ]
    assert PAGE.count("![") == len(found)
    for script, figure in found:
        assert (ROOT / script).is_file()
        assert (ROOT / "docs" / figure).stat().st_size < 400_000
    # what the text says of the figures holds for the scripts' defaults
    assert (DecayConfig().rotary_dim, len(DecayConfig().bases_shown)) == (64, 7)
    assert len(BaseConfig().models) == 6
    assert TurnsConfig().windows == 4


def test_the_demo_has_the_geometry_of_its_config():
    config = load(Config, ROOT / "configs/demo.yaml")
    demo = KNOWN_MODELS[0]
    assert demo.geometry == config.rotary_layers.geometry
    assert demo.train_length == config.stages[-1].seq_len


# Decay


def test_the_decay_table():
    rows = rows_below("base (d 64)")
    assert octaves(2048)[2] == (4, 7)
    assert octaves(2048)[7] == (128, 255)
    assert octaves(2048)[-1] == (1024, 2047)
    expected = []
    for base in (1.0, 10.0, 100.0, 500.0, 5000.0, 10000.0, 50000.0):
        scores = decay_scores(RotaryGeometry(64, base).inv_freq(), np.arange(2048))
        means, peaks = mean_and_peak_by_octave(scores)
        falls = ("–", "–")
        if base >= 500:
            falls = f"{(means[2] - means[7]) / 5:.2f}", f"{8 * math.log(2) / math.log(base):.2f}"
        numbers = f"{means[2]:.2f}", f"{means[7]:.2f}", *falls, f"{peaks[-1]:.2f}"
        expected.append(row(f"{base:,.0f}", *numbers))
    assert rows == expected


def test_the_numbers_of_roformers_bound():
    distances = np.arange(2048)
    rotations = np.exp(1j * distances[:, None] * GEOMETRY.inv_freq())
    mean_sums = np.abs(np.cumsum(rotations, axis=1)).mean(1)
    at_zero, *octaves_ = mean_sums[0], *octave_means(mean_sums, np.array([10, 100, 1000]))
    text = " ".join(PAGE.split())
    assert (
        f"its mean over pairs is {at_zero:.1f} at Δ = 0, and the mean of that over the octave "
        "around Δ falls to {:.1f} at 10, {:.1f} at 100 and {:.1f} at 1,000".format(*octaves_)
    ) in text
    # q = k = 1: h_i = 2 but for the last difference, so the bound is 2·Σ|S|; the score is 2·32
    assert f"it is {2 * 32 * at_zero / (2 * 32):.1f} times the score" in text


# Base and turns


def test_the_table_of_bases(known):
    expected = [
        row(
            name,
            f"{made.geometry.rotary_dim}",
            f"{made.geometry.base:,.0f}",
            f"{made.geometry.train_length:,}",
            f"{made.longest_wavelength:,.0f}",
            f"{made.longest_wavelength / made.geometry.train_length:.3g}",
            f"{made.first_negative:,}",
        )
        for name, made in known.items()
    ]
    table = PAGE[PAGE.index("## Base and longest") : PAGE.index("## Which pairs")]
    assert [line for line in table.split("\n") if line.startswith("| ")][1:] == expected
    beyond = [n for n, made in known.items() if made.first_negative < made.geometry.train_length]
    assert beyond == ["GPT-NeoX 20B", "Llama 2", "Qwen2.5"]
    text = " ".join(PAGE.split())
    assert "the windows of Llama 3 and Code Llama are within what their base supports" in text
    assert "those of Llama 2 and Qwen2.5 are beyond it" in text
    # GPT-NeoX: expected score in units of v, whose rotated part is at least −2·12
    assert 2 * known["GPT-NeoX 20B"].turns.size < 96 - 24
    assert "only 24 of each head's 96 dimensions: the other 72 add a positive number" in text


def test_the_table_of_turns(known):
    expected = []
    for name, made in known.items():
        shown = made.geometry
        share = math.log(shown.train_length / 2 / math.pi) / math.log(shown.base)
        slowest = float(f"{made.turns[-1]:.2g}")
        digits = f"{slowest:.4f}" if slowest < 0.01 else f"{slowest:.3f}"
        circles = f"{made.full_circles} of {made.turns.size}"
        expected.append(row(name, f"{share:.2f}", circles, digits))
        # the page's formula for the pairs with a full circle
        last = shown.rotary_dim / 2 * share
        assert made.full_circles == math.floor(last) + 1
        assert made.full_circles / made.turns.size == pytest.approx(share, abs=1 / made.turns.size)
    table = PAGE[PAGE.index("## Which pairs") : PAGE.index("## Why a model fails")]
    assert [line for line in table.split("\n") if line.startswith("| ")][1:] == expected
    assert f"{2 * known['Llama 2'].full_circles} of 128 for Llama 2" in PAGE


def test_the_unseen_shares(known):
    demo, llama = known["demo"].unseen(4), known["Llama 2"].unseen(4)
    assert (demo.argmax(), llama.argmax()) == (7, 54)
    text = " ".join(PAGE.split())
    assert f"the demo's pair 7 covers {demo[7]:.0%} of its circle" in text
    assert f"Llama 2's pair 54 covers {llama[54]:.0%}" in text


# Precision


def test_the_table_of_errors():
    theta = GEOMETRY.inv_freq()
    in_float32 = theta.astype(np.float32)
    frequencies = parse_scaling({"type": "none"}).frequencies(GEOMETRY)
    jitted = jax.jit(cos_sin)
    expected = []
    for bound, name in ((4096, "4,096"), (131_072, "131,072"), (10**6, "10^6"), (10**7, "10^7")):
        positions = np.arange(bound + 1)
        if bound > 131_072:
            positions = np.random.default_rng(0).integers(0, bound + 1, 2**16)
        exact = np.cos(positions[:, None] * theta)
        product = positions[:, None].astype(np.float32) * in_float32
        by_frequency = np.abs(np.cos(positions[:, None] * in_float32.astype(np.float64)) - exact)
        by_both = np.abs(np.cos(product.astype(np.float64)) - exact)
        cos, _ = jitted(frequencies, positions.astype(np.int32))
        assert np.abs(np.asarray(cos, np.float64) - exact).max() < 3.5e-7
        expected.append(row(name, short(by_frequency.max()), short(by_both.max()), "3e-7"))
    table = PAGE[PAGE.index("## Precision") :]
    assert [line for line in table.split("\n") if line.startswith("| ")][1:] == expected
