"""The page: its data, and the pieces that its script needs. Looks are checked in a browser."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations

import numpy as np
import pytest

from rope_jax.comparison.comparable import find_mismatches
from rope_jax.comparison.curves import compare
from rope_jax.comparison.read import find_sweeps, read_sweep
from rope_jax.config.presentation import CompareConfig
from rope_jax.plots.style import PALETTE, assign_styles
from rope_jax.report.page import DARK_COLOURS, format_page


@pytest.fixture(autouse=True)
def without_plotly(monkeypatch):
    monkeypatch.setattr("rope_jax.report.page.get_plotlyjs", lambda: "/* plotly.js */")


def compared(*runs, **settings):
    sweeps = [read_sweep(folder) for folder in find_sweeps(runs, None)]
    return compare(sweeps, find_mismatches(sweeps), CompareConfig(resamples=50, **settings))


@pytest.fixture
def two(sweep_of):
    return compared(sweep_of("one"), sweep_of("two", model="hidden_size: 32", corpus="beef"))


def data_of(page):
    return json.loads(re.search(r'type="application/json">(.*?)</script>', page)[1])


class _Elements(HTMLParser):
    """The elements with an id, with the tag and id of the fieldset around each."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.in_fieldset, self._fieldset, self._texts = {}, {}, None, []
        self.legends = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag == "fieldset":
            self._fieldset = True
        self._texts.append(tag)
        if name := dict(attributes).get("id"):
            self.tags[name], self.in_fieldset[name] = tag, self._fieldset

    def handle_endtag(self, tag):
        if tag == "fieldset":
            self._fieldset = None

    def handle_data(self, text):
        if self._texts and self._texts[-1] == "legend" and text.strip():
            self.legends.append(text)
            self._texts.append("")


def test_every_element_that_the_script_uses_is_there(two):
    page = format_page(two)
    elements = _Elements(page)
    used = set(re.findall(r'\$\("([\w-]+)"\)', page))
    assert used <= set(elements.tags)
    controls = {"show", "step", "logx", "logy", "bands", "seeds", "theme", "reset"}
    assert controls < set(elements.tags)
    assert all(elements.in_fieldset[name] for name in controls)
    assert elements.legends == [
        *("Protocol", "Values", "Logarithmic axes", "Uncertainty", "Page", "Scalings", "Runs")
    ]
    assert {elements.tags[name] for name in ("csv", "markdown", "reset")} == {"button"}


def test_every_colour_has_a_dark_counterpart(two):
    page = format_page(two)
    light = re.search(r":root \{(.*?)\}", page, re.DOTALL)[1]
    system = re.search(r"prefers-color-scheme: dark\).*?\{.*?\{(.*?)\}", page, re.DOTALL)[1]
    chosen = re.search(r":root\[data-theme=dark\] \{(.*?)\}", page, re.DOTALL)[1]
    names = re.findall(r"--[\w-]+(?=:)", light)
    assert len(names) > 10
    assert re.findall(r"--[\w-]+(?=:)", system) == names
    assert chosen.split() == system.split()  # by the system and by hand alike
    for used in re.findall(r'var\((--[\w-]+)\)|css\("(--[\w-]+)"\)', page):
        assert (used[0] or used[1]) in names


def test_the_data_say_what_differs_and_what_is_marked(two):
    data = data_of(format_page(two))
    assert [(g["label"], g["differs"], g["settings"], g["marked"]) for g in data["groups"]] == [
        ("one", "model.hidden_size 16", "model.hidden_size 16", False),
        ("two †", "model.hidden_size 32", "model.hidden_size 32", True),
    ]
    assert data["sources"][0][-1] == "differs in"
    assert data["sources"][2][-1] == "model.hidden_size 32"
    many = replace(two.groups[0], settings={f"rope.k{i}": "1" for i in range(5)})
    (group, _) = data_of(format_page(replace(two, groups=[many, two.groups[1]], curves=[])))[
        "groups"
    ]
    assert group["differs"] == "rope.k0 1, rope.k1 1, rope.k2 1 and 2 more"
    assert group["settings"].count(",") == 4


def test_the_page_begins_with_what_the_tables_list(sweep_of):
    run = sweep_of("one", own="none")
    data = data_of(format_page(compared(run, show="nats")))
    assert (data["show"], data["baseline"], data["most_bands"]) == ("nats", "none", 6)
    assert data["notes"] == []
    page = format_page(compared(run))
    assert data_of(page)["show"] == "perplexity"
    # the values of `show` are the quantities that the script knows by these names
    for show in ("perplexity", "nats", "bits_per_byte"):
        assert re.search(rf"^  {show}: {{", page, re.MULTILINE)


def test_groups_with_one_and_the_same_curve_have_colours_and_markers(sweep_of):
    runs = [sweep_of(f"r{n}", own=None, model=f"hidden_size: {n}") for n in (16, 32, 64)]
    groups = data_of(format_page(compared(*runs)))["groups"]
    assert len({group["color"] for group in groups}) == 3
    assert len({group["symbol"] for group in groups}) == 3
    assert {group["dash"] for group in groups} == {"solid"}


def test_usable_lengths_are_sorted_by_length(sweep_of):
    good = dict.fromkeys((8, 16, 32, 64), 0.0)
    found = compared(sweep_of("one", yarn_offsets=good))
    (trained, yarn) = data_of(format_page(found))["curves"]
    assert (trained["usable"], trained["usable_at"]) == ("16", 16)
    assert (yarn["usable"], yarn["usable_at"]) == ("≥ 64", 64.5)
    found = compared(sweep_of("two", own=None))
    (yarn,) = data_of(format_page(found))["curves"]
    assert (yarn["usable"], yarn["usable_at"]) == ("none", 0)


def test_points_name_the_units_of_their_intervals(two):
    point = replace(two.curves[0].points[0], units=33, documents=3)
    curves = [replace(two.curves[0], points=(point,)), *two.curves[1:]]
    data = data_of(format_page(replace(two, curves=curves)))
    assert data["curves"][0]["points"][0]["resampled"] == "33 blocks of 3 documents"
    assert data["curves"][1]["points"][0]["resampled"] == "24 documents"
    assert (data["units"], data["paired"]) == (
        "documents and blocks",
        "paired by document or block",
    )
    one = replace(point, units=1, documents=1)
    data = data_of(format_page(replace(two, curves=[replace(two.curves[0], points=(one,))])))
    assert data["paired"] == "paired by document"
    assert data["curves"][0]["points"][0]["resampled"] == "1 document"


EVIL = '</script><b>[red]x\x1b[31m"&\u202e'


def test_names_settings_and_notes_are_shown_as_they_are(two):
    group = replace(two.groups[0], label=EVIL, settings={"rope.x": "</script>"})
    curves = [replace(c, group=group) for c in two.curves]
    page = format_page(replace(two, groups=[group], curves=curves, notes=[EVIL], remarks=(EVIL,)))
    assert "\x1b" not in page
    assert "\u202e" not in page
    shown = '</script><b>[red]x\\x1b[31m"&\\u202e'
    assert shown not in page
    data = data_of(page)
    assert (
        data["title"]
        == data["notes"][0]
        == data["remarks"][0]
        == data["groups"][0]["label"]
        == shown
    )
    assert data["sources"][1][0] == shown
    title = re.search(r"<title>(.*?)</title>", page)[1]
    assert title == "&lt;/script&gt;&lt;b&gt;[red]x\\x1b[31m&quot;&amp;\\u202e"
    # what stands between tags is only ever set as text; markup is made of the page's own parts
    assert "innerHTML" not in page
    for drawing in re.findall(r"=>\s*\n?\s*`<(?:b|svg).*?`\);", page, re.DOTALL):
        assert not re.search(r"\$\{[^}]*(name|label|differs)", drawing)


def _linear(colour):
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


_TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def _cielab(colour):
    """Return L*, a* and b* of an sRGB colour for the white point D65."""
    x, y, z = np.cbrt(_TO_XYZ @ _linear(colour) / [0.95047, 1.0, 1.08883])  # not for near-black
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colours_of_curves_stay_apart_on_a_dark_page(two):
    styles = assign_styles({str(n): str(n) for n in range(len(PALETTE) - 1)})
    styles |= assign_styles({kind: kind for kind in ("trained", "none", "pi", "ntk", "yarn")})
    assert {style.color for style in styles.values()} | set(PALETTE) == set(DARK_COLOURS)
    page = format_page(two)
    assert data_of(page)["dark"] == DARK_COLOURS
    dark = re.search(r"data-theme=dark\] \{.*?--page: (#\w+)", page, re.DOTALL)[1]
    for colour in DARK_COLOURS.values():
        luminance, behind = (_TO_XYZ[1] @ _linear(one) for one in (colour, dark))
        assert (luminance + 0.05) / (behind + 0.05) >= 4, colour
    for one, other in combinations(DARK_COLOURS.values(), 2):
        assert np.linalg.norm(_cielab(one) - _cielab(other)) >= 25, (one, other)
