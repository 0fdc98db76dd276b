"""The page: its data, and the pieces that its script needs. Looks are checked in a browser."""

import json
import math
import re
from dataclasses import replace
from typing import get_args

import pytest

from rope_jax.config.presentation import Show
from rope_jax.plots.style import MARKERS, PALETTE, assign_styles
from rope_jax.report.page import format_page
from rope_jax.results.statistics import Estimate
from tests.comparison.conftest import compared


@pytest.fixture(autouse=True)
def without_plotly(monkeypatch):
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* plotly.js */")


@pytest.fixture(scope="module")
def two(lasting):
    """Two seeds of a run, and one that cannot be compared with it."""
    seeds = [lasting(f"one-s{seed}", seed=seed, steps=(50, 100)) for seed in (0, 1)]
    return compared(*seeds, lasting("two", model="hidden_size: 32", corpus="beef"))


def data_of(page):
    return json.loads(re.search(r'type="application/json">(.*?)</script>', page)[1])


def test_every_element_that_the_script_uses_is_there(two):
    page = format_page(two)
    assert set(re.findall(r'\$\("([\w-]+)"\)', page)) <= set(re.findall(r' id="([\w-]+)"', page))
    # nothing is fetched, and the browser would refuse to
    assert "default-src 'none'" in page
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="?(http|//)', page)
    assert "TITLE" not in page.partition("<style>")[0]
    # the values of `show` are the quantities that the script knows by these names
    for show in get_args(Show):
        assert re.search(rf"^  {show}: {{", page, re.MULTILINE)


def test_every_curve_is_on_the_page(two):
    data = data_of(format_page(two))
    assert data["notes"] == two.notes
    assert [style["name"] for style in data["names"]] == ["trained", "yarn-4"]
    for shown, curve in zip(data["curves"], two.curves, strict=True):
        assert (shown["name"], shown["step"], shown["newest"]) == (
            (curve.name, curve.step, curve.is_newest)
        )
        assert data["groups"][shown["group"]]["label"] == curve.group.label
        for one, p in zip(shown["points"], curve.points, strict=True):
            for name in ("protocol", "length", "nll", "ci_low", "ci_high", "bpb", "bpb_low"):
                assert one[name] == getattr(p, name)
            assert one["nll_by_seed"] == list(p.nll_by_seed)
            assert one["above_own"] == (p.above_own and list(p.above_own))
    assert [(g["label"], g["differs"], g["marked"]) for g in data["groups"]] == [
        ("one (2 seeds)", "model.hidden_size 16", False),
        ("two †", "model.hidden_size 32", True),
    ]
    assert [row[-1] for row in data["sources"]] == [
        *("differs in", "model.hidden_size 16", "model.hidden_size 32")
    ]


def test_values_that_are_not_finite_are_null(two):
    for nll in (math.inf, math.nan, 800.0):
        unknown = {"ci_low": math.nan, "ci_high": math.nan, "nll_by_seed": (nll, 1.0)}
        above = Estimate(nll, math.nan, math.nan)
        point = replace(two.curves[0].points[0], nll=nll, above_own=above, **unknown)
        curves = [replace(two.curves[0], points=(point,)), *two.curves[1:]]
        (shown,) = data_of(format_page(replace(two, curves=curves)))["curves"][0]["points"]
        written = 800.0 if nll == 800 else None
        assert (shown["nll"], shown["nll_by_seed"]) == (written, [written, 1.0])
        assert (shown["ci_low"], shown["above_own"]) == (None, [written, None, None])


def test_groups_with_one_and_the_same_curve_have_colours_and_markers(sweep_of, two):
    runs = [sweep_of(f"r{n}", own=None, model=f"hidden_size: {n}") for n in (16, 32, 64)]
    data = data_of(format_page(compared(*runs, show="nats")))
    groups = data["groups"]
    assert len({group["color"] for group in groups}) == 3
    assert len({group["marker"] for group in groups}) == 3
    assert data["show"] == "nats"
    assert [g["color"] for g in data_of(format_page(two))["groups"]] == [None, None]


def test_usable_lengths_are_sorted_by_length(sweep_of):
    good = dict.fromkeys((8, 16, 32, 64), 0.0)
    (trained, yarn) = data_of(format_page(compared(sweep_of("one", yarn_offsets=good))))["curves"]
    assert (trained["usable"], trained["usable_at"]) == ("16", 16)
    assert (yarn["usable"], yarn["usable_at"]) == ("≥ 64", 64.5)
    (yarn,) = data_of(format_page(compared(sweep_of("two", own=None))))["curves"]
    assert (yarn["usable"], yarn["usable_at"]) == ("none", 0)


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
    names = data["title"], data["notes"][0], data["remarks"][0], data["groups"][0]["label"]
    assert {*names, data["sources"][1][0]} == {shown}
    title = re.search(r"<title>(.*?)</title>", page)[1]
    assert title == "&lt;/script&gt;&lt;b&gt;[red]x\\x1b[31m&quot;&amp;\\u202e"
    # what stands between tags is only ever set as text; markup is made of the page's own parts
    assert "innerHTML" not in page
    for drawing in re.findall(r"=>\s*\n?\s*`<(?:b|svg).*?`\);", page, re.DOTALL):
        assert not re.search(r"\$\{[^}]*(name|label|differs)", drawing)


def test_the_script_knows_every_colour_and_marker_of_a_curve(two):
    page = format_page(two)
    dark = json.loads(re.search(r"const dark = (\{.*?\});", page, re.DOTALL)[1])
    styles = assign_styles({str(n): str(n) for n in range(len(PALETTE) - 1)})
    styles |= assign_styles({kind: kind for kind in ("trained", "none", "pi", "ntk", "yarn")})
    assert {style.color for style in styles.values()} | set(PALETTE) == set(dark)
    assert len(set(dark.values())) == len(dark)
    symbols = re.search(r"const symbols = \{(.*?)\};", page, re.DOTALL)[1]
    assert {pair[0] for pair in re.findall(r'(\w|(?<=").(?="))"?: "', symbols)} == set(MARKERS)
