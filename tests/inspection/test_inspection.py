"""rope-jax show, from a command line to a figure and tables."""

import math
import re

import numpy as np
import pytest
from matplotlib.image import imread

from rope_jax.commands.main import show as show_scaling
from rope_jax.config.inspection import ScalingConfig, load_inspection
from rope_jax.plots.style import assign_styles
from rope_jax.rope import RotaryGeometry, parse_scaling

# Layers that differ: base 100 with YaRN at 16 tokens, DRoPE, and base 1,000 in a sliding window.
TRAINING = """
name: tiny
model: {hidden_size: 16, num_hidden_layers: 5, num_attention_heads: 2}
optim: {warmup_steps: 1}
rope:
  base: 100
  layer_pattern: [{}, {scaling: {type: drope}}, {base: 1e3, sliding_window: 4}]
stages:
  - {steps: 5, seq_len: 8, batch_size: 2}
  - {steps: 5, seq_len: 16, batch_size: 2, scaling: {type: yarn, factor: 2, beta_fast: 2}}
"""
SIX = (
    "scalings=[none, {type: yarn, factor: 4, beta_fast: 8}, {type: yarn, factor: auto, "
    "beta_fast: 8}, {type: p_rope, p: 0.5}, {type: drope}, "
    "{type: pi, factor: auto, query_scale: {type: logn}}]"
)


@pytest.fixture(autouse=True)
def training_config(folder):
    (folder / "run.yaml").write_text(TRAINING)


def table(out, title):
    """Return the cells of the rows below a title."""
    lines = out.partition(f"{title}\n")[2].partition("\n\n")[0].splitlines()
    return [line.split() for line in lines[1:]]


def test_show_scaling_prints_tables_and_draws_a_figure(show, folder):
    geometry = ["rotary_dim=16", "base=1000", "train_length=256", "length=1024"]
    out, figure = show(show_scaling, *geometry, SIX, pixels=True)
    theta = 1000 ** (-np.arange(8) / 8)
    wave, scale, unseen = figure.axes

    def drawn(axis, nth):
        return axis.get_lines()[nth].get_ydata()

    # none, then YaRN: the same whichever way the factor is given
    np.testing.assert_allclose(drawn(wave, 0), 2 * np.pi / theta, rtol=1e-9)
    yarn = parse_scaling({"type": "yarn", "factor": 4.0, "beta_fast": 8.0})
    scaled = yarn.scaled(RotaryGeometry(16, 1000.0, 256))[0]
    for nth in (1, 2):
        np.testing.assert_allclose(drawn(scale, nth), scaled / theta, rtol=1e-9)
    expected = np.minimum(1, 1023 * theta / 2 / np.pi) - np.minimum(1, 255 * theta / 2 / np.pi)
    np.testing.assert_allclose(drawn(unseen, 0), expected, atol=1e-12)
    # the colours of a sweep's figure; two curves of a type differ in them
    one, other = unseen.get_lines()[1:3]
    assert one.get_color() == assign_styles({"yarn": "yarn"})["yarn"].color != other.get_color()
    # pairs at frequency 0 are drawn beyond the others, and the lengths are marked
    longest = 4 * 2 * np.pi / theta[-1]
    np.testing.assert_allclose([*drawn(wave, 3)[4:], *drawn(wave, 4)], 3 * longest)
    texts = [{text.get_text() for text in axis.texts} for axis in figure.axes]
    assert texts == [{"∞", "window 256", "text 1,024"}, {"0"}, set()]

    names = ["none", "yarn-4", "yarn-auto", "p_rope", "drope", "pi-auto-logn"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    rows = table(out, "turns in the training window, L·θ'/(2π)")
    assert rows[0] == ["0", "40.74", "40.74", "40.74", "40.74", "0", "10.19"]
    last = 256 * theta[7] / 2 / np.pi
    assert rows[7] == ["7", *(f"{x:.4g}" for x in (last, last / 4, last / 4, 0, 0, last / 4))]
    lines = out.partition("summary\n")[2].splitlines()[1:7]
    summary = {line.split()[0]: re.split("  +", line)[1:] for line in lines}
    assert list(summary) == names
    never = (256 * theta < 2 * np.pi).sum()
    assert summary["none"][-2:] == [f"{never} of 8", f"{expected.mean():.4g}"]
    assert summary["p_rope"][:2] == ["6.283 … ∞", "1 … 0"]
    assert summary["drope"][:2] == ["∞", "0"]
    assert summary["yarn-4"][2] == f"{1 + 0.1 * math.log(4):.4g}"
    assert summary["pi-auto-logn"][3] == f"1 … {math.log(1024) / math.log(256):.3g}"
    assert imread(folder / "scaling.png").std() > 0.02
    assert {path.name for path in folder.iterdir()} == {
        "run.yaml",
        "scaling.png",
        "scaling.pdf",
        "scaling.svg",
    }


def test_many_pairs_and_curves_fit_the_terminal(show):
    out, _ = show(show_scaling, "rotary_dim=128", "base=1e6", "length=1e6", "output=a.svg", SIX)
    rows = table(out, "wavelength 2π/θ', tokens")
    assert [row[0] for row in rows] == [str(i) for i in range(64)]


def test_show_scaling_shows_each_kind_of_layer_of_a_training_config(show):
    out, figure = show(show_scaling, "run.yaml")
    assert "tiny: d 8, base 100 and 1,000, trained at 16 tokens with yarn-2; a text of 64" in out
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [
        "stage 0: none (layers 0, 3)",
        "drope (layers 1, 4)",
        "stage 0: none (layer 2)",
        "trained (layers 0, 3)",
        "trained (layer 2)",
    ]
    yarn = parse_scaling({"type": "yarn", "factor": 2.0, "beta_fast": 2.0})
    for places, base, window, length in (((0, 3), 100, 16, 64), ((2, 4), 1000, 4, 4)):
        # L is the first stage's length; the angles seen in training are the last stage's
        seen = yarn.scaled(RotaryGeometry(8, float(base), 8))[0]
        for place, theta in zip(places, (base ** -(np.arange(4) / 4), seen), strict=True):
            expected = np.minimum(1, (length - 1) * theta / 2 / np.pi)
            expected -= np.minimum(1, (window - 1) * seen / 2 / np.pi)
            drawn = figure.axes[2].get_lines()[place].get_ydata()
            np.testing.assert_allclose(drawn, np.maximum(expected, 0), atol=1e-9)


@pytest.mark.parametrize("words", [["base=500"], ["run.yaml", "length=50", "scalings=[trained]"]])
def test_the_printed_config_loads_as_the_same_config(folder, capsys, words):
    with pytest.raises(SystemExit):
        show_scaling([*words, "--print-config"])
    (folder / "again.yaml").write_text(capsys.readouterr().out)
    path = folder / words[0] if words[0].endswith("yaml") else None
    wanted = load_inspection(ScalingConfig, path, [word for word in words if "=" in word])
    assert load_inspection(ScalingConfig, folder / "again.yaml", ()) == wanted
