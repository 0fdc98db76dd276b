"""The page: its curves, and names as they are. Looks are checked in a browser."""

import json
import math
import re
from dataclasses import replace

import pytest

from rope_jax.report.page import format_page
from rope_jax.results.statistics import Estimate
from tests.comparison.conftest import compared


@pytest.fixture(scope="module")
def two(lasting):
    """Two seeds of a run, and one that cannot be compared with it."""
    seeds = [lasting(f"one-s{seed}", seed=seed, steps=(50, 100)) for seed in (0, 1)]
    return compared(*seeds, lasting("two", model="hidden_size: 32", corpus="beef"))


def charts_of(page):
    """Return the curves and the layout of each chart."""
    decode, charts = json.JSONDecoder().raw_decode, []
    for found in re.finditer(r"Plotly\.newPlot\(\s*\"chart-\d+\",\s*", page):
        traces, end = decode(page, found.end())
        charts.append((traces, decode(page[end:].lstrip(" ,\n"))[0]))
    return charts


def test_every_curve_is_in_its_protocols_chart_and_the_menu_chooses_the_quantity(two):
    charts = charts_of(format_page(two))
    for (traces, layout), protocol in zip(charts, ("same_tokens", "whole_window"), strict=True):
        shown = {trace["name"]: trace for trace in traces}
        for curve in two.newest:
            points = [point for point in curve.points if point.protocol == protocol]
            assert shown[curve.label]["x"] == [point.last_position for point in points]
            assert shown[curve.label]["y"] == [point.ppl for point in points]
        menu = {button["label"]: button["args"] for button in layout["updatemenus"][0]["buttons"]}
        assert list(menu)[:2] == ["perplexity", "nats per token"]
        for label, (data, axis) in menu.items():
            is_log = label in ("perplexity", "nats per token", "bits per byte")
            assert axis["yaxis.type"] == ("log" if is_log else "linear")
            assert len(data["y"]) == len(traces)
        values, below = menu["nats per token"][0]["y"], menu["nats per token"][0]
        nats, low = values[-1 - ("truncation to the window" in shown)], points[0].ci_low
        assert nats[0] == points[0].nll
        assert nats[0] - below["error_y.arrayminus"][len(two.newest) - 1][0] == pytest.approx(low)
        differs = menu["difference from trained (nats)"][0]["y"]
        assert differs[0] == [None] * len(points)  # trained itself


def test_the_quantity_to_show_comes_first_and_groups_with_one_curve_have_colours(sweep_of):
    runs = [sweep_of(f"r{n}", own=None, model=f"hidden_size: {n}") for n in (16, 32, 64)]
    (traces, layout), _ = charts_of(format_page(compared(*runs, show="nats")))
    assert layout["updatemenus"][0]["buttons"][0]["label"] == "nats per token"
    lines = [trace for trace in traces if "marker" in trace]
    assert len({trace["line"]["color"] for trace in lines}) == 3
    assert len({trace["marker"]["symbol"] for trace in lines}) == 3


def test_values_that_are_not_finite_are_gaps(two):
    unknown = {"ci_low": math.nan, "ci_high": math.nan}
    above = Estimate(math.inf, math.nan, math.nan)
    first, *others = two.newest[0].points
    points = (replace(first, nll=math.inf, above_truncation=above, **unknown), *others)
    curves = [replace(c, points=points) if c is two.newest[0] else c for c in two.curves]
    page = format_page(replace(two, curves=curves))
    assert "Infinity]" not in page.partition("newPlot(\n")[2]
    (traces, _), *_ = charts_of(page)
    assert traces[0]["y"][0] is None


EVIL = '</script><b>[red]x\x1b[31m"&\u202e'


def test_names_settings_and_notes_are_shown_as_they_are_and_nothing_is_fetched(two):
    group = replace(two.groups[0], label=EVIL, settings={"rope.x": "</script>"})
    curves = [replace(c, group=group) for c in two.curves]
    page = format_page(replace(two, groups=[group], curves=curves, notes=[EVIL]))
    shown = "&lt;/script&gt;&lt;b&gt;[red]x\\x1b[31m&quot;&amp;\\u202e"
    assert re.search(r"<title>(.*?)</title>", page)[1] == shown
    assert f'<p class="note">{shown}</p>' in page
    assert not any(active in page for active in (EVIL[:10] + "<b>", "\x1b", "\u202e"))
    assert "default-src 'none'" in page
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="?(http|//)', page)
