"""rope-jax maps, from a command line to the figure, the CSV and the table."""

import csv
import re

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from rope_jax.commands.main import maps as show_maps
from rope_jax.config.inspection import MapsConfig
from rope_jax.inspection.maps import shown_maps
from rope_jax.positions.maps import MAPS
from rope_jax.rope import RotaryGeometry, parse_scaling

VERMILION = "#D55E00"
# Settings beside those that they stand for at L = 128 and n = 512.
ASKED = (
    "maps=[leaky_rerope, {type: self_extend, window: 64, group: 8}, {type: streaming, sinks: 2}, "
    "{type: leaky_rerope, window: 64, k: 4}]"
)


def read(path):
    """Return a CSV's header, and its columns with NaN for an empty cell."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return header, np.array([[float(cell or "nan") for cell in row] for row in rows]).T


def drawn(axis):
    (image,) = axis.get_images()
    return np.ma.filled(image.get_array().astype(float), np.nan)


def test_a_panel_a_column_and_a_row_for_every_map(show, folder):
    out, figure = show(show_maps, ASKED, "window=128", "length=512", pixels=True)
    names = ["rope", "leaky_rerope+window=auto+k=auto", "self_extend", "streaming"]
    names.append("leaky_rerope+window=64+k=4")
    header, columns = read(folder / "maps.csv")
    assert header == ["distance", *names]
    d = np.arange(512.0)
    leaky = MAPS["leaky_rerope"]().at(128, 512)
    w, k = leaky.window, leaky.k
    i, j = 511, 511 - d
    wanted = [
        d,
        d,
        np.where(d < w, d, w + (d - w) / k),
        np.where(d < 64, d, i // 8 - j // 8 + 64 - 8),
        # 2 sinks and 125 more tokens: the cache holds 128 with the query
        np.where(d <= 125, d, np.where(j < 2, 127 - j, np.nan)),
        np.where(d < 64, d, 64 + (d - 64) / 4),
    ]
    np.testing.assert_allclose(columns, wanted, rtol=1e-11)

    # the last row of every panel is the CSV's column, and nothing later than the query is drawn
    panels = [axis for axis in figure.axes if axis.get_images() and axis.get_visible()]
    for axis, column in zip(panels, columns[1:], strict=True):
        r = drawn(axis)
        np.testing.assert_allclose(r[-1], column[::-1], rtol=1e-11)
        assert np.isnan(r[np.triu_indices(512, 1)]).all()
        assert (r[np.diag_indices(512)] == 0).all()
        (image,) = axis.get_images()
        assert (image.norm.vmin, image.norm.vmax) == (0, 127)
        assert image.cmap(image.norm(127.5))[:3] == pytest.approx(to_rgb(VERMILION))
    # hatched where r is above L − 1, and only there
    hatched = [bool(axis.collections) for axis in panels]
    assert hatched == [True, False, False, False, True]
    titles = [" ".join(axis.get_title().split()) for axis in panels]
    assert titles[0] == "rope L 128, largest r 511"
    assert titles[3] == "streaming (sinks 2, recent 125) L 128, largest r 127"
    assert imread(folder / "maps.png").std() > 0.1

    visible = sum(min(i + 1, 126) + min(max(i - 125, 0), 2) for i in range(512)) / (512 * 513 / 2)
    rows = [re.split("  +", line.strip()) for line in out.splitlines()]
    assert ["self_extend", "window 64, group 8", "119", "100%", "yes"] in rows
    assert ["streaming", "sinks 2, recent 125", "127", f"{visible:.1%}", "yes"] in rows
    assert ["rope", "511", "100%", "no"] in rows
    assert f"window {w}, k {k:.4g}" in out
    # reported, not refused
    reason = "leaky_rerope+window=64+k=4: window, k: 64, 4 put the first of 512 tokens at distance"
    assert reason in " ".join(out.split())


def test_far_frequencies_are_those_of_the_slowest_pair(show, folder):
    far = "{type: far_frequencies, window: 16, far: {type: yarn, factor: 4}}"
    still = "{type: far_frequencies, window: 8, far: {type: drope}}"
    words = [f"maps=[{far}, {still}]", "window=32", "length=100", "rotary_dim=16", "base=100"]
    out, _ = show(show_maps, *words)
    geometry, d = RotaryGeometry(16, 100.0, 32), np.arange(100.0)
    theta = geometry.inv_freq()[-1]
    other = parse_scaling({"type": "yarn", "factor": 4.0}).scaled(geometry)[0][-1]
    assert 0.2 < other / theta < 0.3
    _, columns = read(folder / "maps.csv")
    wanted = np.where(d < 16, d, 16 + (d - 16) * other / theta)
    np.testing.assert_allclose(columns[2], wanted, rtol=1e-6)
    np.testing.assert_array_equal(columns[3], np.minimum(d, 8))  # ReRoPE
    assert "far yarn-4; slowest pair" in " ".join(out.split())


def test_up_to_the_window_auto_is_plain_rope(show, folder):
    out, figure = show(show_maps, "maps=[leaky_rerope]", "window=64", "length=64")
    _, (distance, *columns) = read(folder / "maps.csv")
    np.testing.assert_array_equal(columns, [distance, distance])
    assert "auto: no map up to L tokens" in out
    assert not any(axis.collections for axis in figure.axes if axis.get_images())


def test_a_long_text_is_drawn_at_evenly_spaced_tokens(show, folder):
    words = "maps=[{type: rerope, window: 99}]", "window=512", "length=2000", "output=a.svg"
    _, figure = show(show_maps, *words)
    r = drawn(figure.axes[1])
    places = np.unique(np.linspace(0, 1999, 512).round())
    np.testing.assert_array_equal(r[-1], np.minimum(1999 - places, 99))
    assert figure.axes[1].get_images()[0].get_extent() == [-0.5, 1999.5, 1999.5, -0.5]
    assert read(folder / "a.csv")[1].shape == (3, 2000)


def test_the_default_shows_every_map_with_its_reach():
    asked = MapsConfig()
    # a fitted map has no numbers by default
    assert {map_.type for map_ in asked.maps} == set(MAPS) - {"fitted"}
    shown = {made.name: made for made in shown_maps(asked)}
    assert list(shown) == ["rope", *(map_.type for map_ in asked.maps)]
    # string is meant for texts inside the window
    assert [name for name, made in shown.items() if not made.reaches] == ["rope", "string"]
    assert (shown["rope"].largest, shown["dual_chunk"].largest) == (511, 96)
