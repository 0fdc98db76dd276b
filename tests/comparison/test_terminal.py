"""The comparison in a terminal: one line per curve, whatever fits beside it, and names in full."""

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from rope_jax.console import plain_console
from rope_jax.report.comparison import comparison_markdown
from rope_jax.report.measured import value_text
from rope_jax.report.terminal import print_comparison
from tests.comparison.conftest import compared

WAYS = {"yarn_offsets": {8: 0.0, 16: 0.0, 32: -0.25, 64: 1.0}}


def printed(comparison, width, make=plain_console, **options):
    stream = io.StringIO()
    print_comparison(make(file=stream, width=width, **options), comparison)
    return re.sub(" +$", "", stream.getvalue(), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def one(lasting):
    return compared(lasting("one", **WAYS))


@pytest.fixture(scope="module")
def two(lasting):
    """Two groups of two curves."""
    return compared(lasting("first", **WAYS), lasting("second", model="hidden_size: 32", **WAYS))


def test_a_wide_terminal_has_usable_lengths_and_losses_above_truncation(one):
    assert printed(one, 100).splitlines() == [
        "perplexity of one; same_tokens",
        "scaling               8           16           32              64   usable"
        "  above truncation",
        "trained     12.14 ±3.00   9.45 ±2.34  15.58 ±3.85    42.36 ±10.46       16"
        "     +1.500 ±0.000",
        "yarn-4       9.45 ±2.34•  9.45 ±2.34   7.36 ±1.82•*   25.69 ±6.35•      32"
        "     +1.000 ±0.000",
        "truncation                      9.45         9.45            9.45",
        "± half of the 95% interval over documents; • best of its column;",
        "* below truncation by more than the interval of the difference;",
        "above truncation: nats per token at 64 tokens; one seed says nothing about other seeds",
    ]


def test_groups_have_headings_that_say_what_differs(two):
    assert printed(two, 80).splitlines()[:-3] == [
        "perplexity; same_tokens",
        "scaling              8           16            32              64   usable",
        "first",
        "  trained  12.17 ±2.91   9.48 ±2.26•  15.63 ±3.73    42.48 ±10.15       16",
        "  yarn-4    9.48 ±2.26•  9.48 ±2.26•   7.38 ±1.76•*   25.77 ±6.16•      32",
        "second",
        "  trained  12.22 ±2.94   9.51 ±2.29   15.69 ±3.78    42.64 ±10.27       16",
        "  yarn-4    9.51 ±2.29   9.51 ±2.29    7.41 ±1.78*    25.86 ±6.23       32",
        "first: model.hidden_size 16",
        "second: model.hidden_size 32",
    ]
    # a marked group has no best values
    marked = replace(two.groups[0], marked=True)
    curves = [replace(c, group=marked) if c.group is two.groups[0] else c for c in two.curves]
    text = printed(replace(two, groups=[marked, two.groups[1]], curves=curves), 80)
    first, _, second = text.partition("\nsecond\n")
    assert "•" not in first
    assert "•" in second


def test_intervals_over_seeds_may_be_wider_than_their_values(sweep_of):
    seeds = [sweep_of(f"a-s{seed}", seed=seed, shift=0.2 * seed, own=None) for seed in (0, 1)]
    other = sweep_of("b", shift=-0.5, own=None, model="hidden_size: 32")
    lines = printed(compared(*seeds, other), 100).splitlines()
    assert lines[0] == "perplexity of yarn-4; same_tokens"
    assert re.search(r"^a \(2 seeds\) +17\.35 \[4\.42, 67\.41\] ", lines[2])
    assert re.search(r"^b +9\.50 ±2\.24• ", lines[3])
    over = "over documents and, where a group has several, seeds"
    assert f"± half of the 95% interval {over}; [ ] the ends of the" in " ".join(lines)
    lines = printed(compared(*seeds), 100).splitlines()
    ends = "[ ] the ends of the 95% interval over documents and seeds"
    assert f"{ends}, where half of it exceeds the value" in " ".join(lines)
    assert "one seed" not in " ".join(lines)


def test_a_table_without_room_goes_on_below_itself_with_whole_names(one):
    name = "a_scaling-with-an.exceedingly_long-name"
    curves = [replace(c, name=name) if c.name == "yarn-4" else c for c in one.curves]
    lines = printed(replace(one, curves=curves), 60).splitlines()
    assert sum(line.startswith(name) for line in lines) > 1
    assert max(map(len, lines)) <= 60


EVIL = "[red]x [/] \\[b] :smile: \x1b[31m"


def test_names_settings_and_notes_are_shown_as_they_are(two):
    group = replace(two.groups[0], label=EVIL, settings={"[/]": "[bold]\\x1b"})
    curves = [replace(c, group=group) if c.group is two.groups[0] else c for c in two.curves]
    odd = replace(two, groups=[group, two.groups[1]], curves=curves, notes=[EVIL], remarks=(EVIL,))
    for make in (plain_console, Console):  # also on a console that reads markup
        text = printed(odd, 200, make, force_terminal=True, color_system=None)
        shown = EVIL.replace("\x1b", "\\x1b")
        assert f"\n{shown}: [/] [bold]\\x1b\n" in text
        assert text.endswith(f"\n{shown}\n{shown}\n")  # the remark, the note
        assert "\x1b" not in text


def test_wide_intervals_are_whole_in_a_narrow_terminal_and_explained_if_there_are_any(one):
    def changed(point):
        half = 0.1 if point.length < 64 else 3 * point.nll
        return replace(point, ci_low=point.nll - 0.1, ci_high=point.nll + half)

    curves = [replace(c, points=tuple(map(changed, c.points))) for c in one.curves]
    found = replace(one, curves=curves)
    point = next(p for p in found.curves[0].points if p.length == 64)
    low, high = (value_text(nll, "perplexity", 2) for nll in (point.nll - 0.1, point.nll * 4))
    assert rf" \[{low}, {high}\]" in comparison_markdown(found)
    assert f"[{low}, {high}]" in printed(found, 80)
    assert "comparison.md has the 95% intervals" in printed(found, 50)
    # intervals that do not exist are not explained
    unknown = {"ci_low": math.nan, "ci_high": math.nan, "above_own": None}
    curves = [replace(c, points=tuple(replace(p, **unknown) for p in c.points)) for c in one.curves]
    text = printed(replace(one, curves=curves), 100)
    assert text.rstrip().endswith("• best of its column")
    assert "±" not in text
