"""The comparison in a terminal: one line per curve, whatever fits beside it, and names in full."""

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from rope_jax.comparison.comparable import find_mismatches
from rope_jax.comparison.curves import compare
from rope_jax.comparison.read import find_sweeps, read_sweep
from rope_jax.config.presentation import CompareConfig
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.report.comparison import comparison_markdown
from rope_jax.report.measured import estimate_cell
from rope_jax.report.terminal import print_comparison
from rope_jax.report.text import half_width_text, perplexity_text
from rope_jax.results.statistics import Estimate

LENGTHS = (8, 16, 32, 64)
WAYS = {"yarn_offsets": {8: 0.0, 16: 0.0, 32: -0.25, 64: 1.0}}


def compared(*runs, **settings):
    sweeps = [read_sweep(folder) for folder in find_sweeps(runs, None)]
    config = CompareConfig(resamples=50, **settings)
    return compare(sweeps, find_mismatches(sweeps), config)


def printed(comparison, width, make=plain_console, **options):
    stream = io.StringIO()
    print_comparison(make(file=stream, width=width, **options), comparison)
    return stream.getvalue()


@pytest.fixture
def one(sweep_of):
    return compared(sweep_of("one", **WAYS))


@pytest.fixture
def two(sweep_of):
    """Two groups of two curves."""
    return compared(sweep_of("first", **WAYS), sweep_of("second", model="hidden_size: 32", **WAYS))


def values(comparison, name, group=0):
    (curve,) = (
        c
        for c in comparison.curves
        if c.name == name and c.group is comparison.groups[group] and c.is_newest
    )
    return {p.length: p for p in curve.points if p.protocol == "same_tokens"}


def test_each_curve_has_one_line_with_its_values_and_intervals(one):
    lines = printed(one, 80).splitlines()
    assert lines[0] == "perplexity of one; same_tokens"
    (trained,) = (line for line in lines if line.startswith("trained"))
    points = values(one, "trained")
    for n in LENGTHS:
        assert f" {points[n].ppl:.2f}" in trained
    assert trained.count("±") + trained.count("[") == len(LENGTHS)
    (yarn,) = (line for line in lines if line.startswith("yarn-4"))
    below = values(one, "yarn-4")[32]
    assert below.gain.low > 0
    assert re.search(rf"{below.ppl:.2f} ?[±\[][^*]*•\*", yarn)
    assert yarn.count("*") == 1
    assert " ".join(lines).endswith(
        "± half of the 95% interval over documents; • best of its column; * below truncation by "
        "more than the interval of the difference; one seed says nothing about other seeds"
    )


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 160, 300])
def test_no_line_is_wider_than_the_terminal(one, two, width):
    for comparison in (one, two):
        text = printed(comparison, width)
        assert max(map(len, text.splitlines())) <= width
        for name in ("trained", "yarn-4"):
            assert re.search(rf"^ *{name} ", text, re.MULTILINE)
        for p in values(comparison, "yarn-4").values():
            assert f"{p.ppl:.2f}" in text  # no number is cut


def test_a_wide_terminal_has_usable_lengths_gains_and_settings(one, sweep_of):
    text = printed(one, 160)
    assert "usable  gain at 64 (nats)" in text
    gain = values(one, "yarn-4")[64].gain
    assert f"{gain.value:+.3f} ±" in text
    assert "usable" not in printed(one, 50)
    single = [
        sweep_of(run, own=None, model=f"hidden_size: {n}") for run, n in (("a", 16), ("b", 32))
    ]
    text = printed(compared(*single), 60)
    assert "\na: model.hidden_size 16\nb: model.hidden_size 32\n" in text


def test_groups_have_headings_that_say_what_differs(two):
    for width in (80, 160):
        lines = printed(two, width).splitlines()
        assert [lines.count(name) for name in ("first", "second")] == [1, 1]
        assert lines.count("first: model.hidden_size 16") == 1
        assert lines.count("second: model.hidden_size 32") == 1
        assert sum("yarn-4" in line for line in lines) == 2


def test_nothing_is_below_truncation_for_sure_over_few_documents(sweep_of):
    text = printed(compared(sweep_of("one", documents=19, **WAYS)), 80)
    assert "*" not in text
    assert "intervals are unreliable below 20 documents" in text


def test_the_best_of_a_column_is_bold_and_marked_unless_most_share_it(one, two):
    text = printed(one, 120, force_terminal=True, color_system="standard")
    bold = re.findall(r"\x1b\[1m([^\x1b]*)\x1b\[0m", text.partition("\n")[2])
    bold = [cell for cell in bold if cell.strip()[:1].isdecimal() and "." in cell]
    best = [min(values(one, name)[n].ppl for name in ("trained", "yarn-4")) for n in LENGTHS]
    assert all("•" in cell for cell in bold)
    assert text.count("•") == len(bold) + 1  # and what it means
    assert [float(cell.split()[0]) for cell in bold] == [
        pytest.approx(best[i], abs=0.005) for i in range(4) if i != 1
    ]  # at 16, the window, both curves are the same
    marked = replace(two.groups[0], marked=True)
    curves = [replace(c, group=marked) if c.group is two.groups[0] else c for c in two.curves]
    alone = printed(
        replace(two, groups=[marked, two.groups[1]], curves=curves),
        120,
        force_terminal=True,
        color_system="standard",
    )
    first, _, second = alone.partition("second")
    assert "\x1b[1m" not in first.partition("first")[2]
    assert "\x1b[1m" in second


def test_long_names_are_folded_and_never_cut(one):
    name = "a_scaling-with-an.exceedingly_long-name"
    curves = [replace(c, name=name) if c.name == "yarn-4" else c for c in one.curves]
    for width in (40, 50, 60):
        text = printed(replace(one, curves=curves), width)
        shown = [re.match(r"(\S*)", line)[1] for line in text.splitlines()]
        assert name in "".join(shown)
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    ("show", "title", "scale"),
    [("nats", "nats per token", 1.0), ("bits_per_byte", "bits per byte", None)],
)
def test_what_is_listed_can_be_chosen(sweep_of, show, title, scale):
    run = sweep_of("one", **WAYS)
    found = compared(run, show=show)
    text, markdown = printed(found, 100), comparison_markdown(found)
    assert text.startswith(f"{title} of one; same_tokens")
    assert f"\n{title.capitalize()} by context length" in markdown
    for p in values(found, "yarn-4").values():
        value, half = p.nll, (p.ci_high - p.ci_low) / 2
        if scale is None:
            value, half = p.bpb, (p.bpb_high - p.bpb_low) / 2
        assert f"{value:.3f} {half_width_text(half)}" in text
        assert f"{value:.3f} {half_width_text(half)}" in markdown.replace("*", "")
    if scale is None:
        assert values(found, "trained")[16].bpb == pytest.approx(
            values(found, "trained")[16].nll * values(found, "trained")[16].bits_per_nat
        )


def test_bits_per_byte_that_are_not_known_are_refused(sweep_of):
    sweeps = [read_sweep(sweep_of("one") / "evals/demo")]
    rows = [row._replace(bpb=None) for row in sweeps[0].rows]
    unknown = [replace(sweeps[0], rows=rows)]
    with pytest.raises(UserError, match=r"^show: these results have no bits per byte"):
        compare(unknown, [], CompareConfig(show="bits_per_byte"))
    compare(unknown, [], CompareConfig(show="nats", resamples=50))


EVIL = "[red]x [/] \\[b] :smile: \x1b[31m"


def test_names_settings_and_notes_are_shown_as_they_are(two):
    group = replace(two.groups[0], label=EVIL, settings={"[/]": "[bold]\\x1b"})
    curves = [replace(c, group=group) if c.group is two.groups[0] else c for c in two.curves]
    odd = replace(two, groups=[group, two.groups[1]], curves=curves, notes=[EVIL], remarks=(EVIL,))
    for make in (plain_console, Console):  # also on a console that reads markup
        for width in (60, 200):
            text = printed(odd, width, make, force_terminal=True, color_system=None)
            shown = EVIL.replace("\x1b", "\\x1b")
            assert f"\n{shown}: [/] [bold]\\x1b\n" in text
            assert text.endswith(f"\n{shown}\n{shown}\n")  # the remark, the note
            assert "\x1b" not in text


def test_blocks_are_named_where_documents_are_too_few(one):
    curves = [
        replace(c, points=tuple(replace(p, units=33, documents=3) for p in c.points))
        for c in one.curves
    ]
    few = replace(one, curves=curves)
    assert "± half of the 95% interval over blocks; " in printed(few, 80)
    assert "; test split, 33 blocks of 3 documents." in comparison_markdown(few)
    assert "in nats per token, paired by block.\n" in comparison_markdown(few)
    assert "by document" not in comparison_markdown(few)
    assert "interval over documents" in printed(one, 80)
    assert "in nats per token, paired by document.\n" in comparison_markdown(one)


def test_the_legend_says_which_intervals_include_seeds(sweep_of):
    seeds = [sweep_of(f"x-s{seed}", seed=seed) for seed in (0, 1)]
    other = sweep_of("y", model="hidden_size: 32")
    one_seed = "one seed says nothing about other seeds"
    for runs, sampled, has_single in (
        (seeds, "documents and seeds", False),
        ([other], "documents", True),
        ([*seeds, other], "documents and, where a group has several, seeds", True),
    ):
        found = compared(*runs)
        text = " ".join(printed(found, 100).split())
        assert f"± half of the 95% interval over {sampled}; " in text
        assert (one_seed in text) is has_single
        markdown = comparison_markdown(found)
        assert f"95% interval over {sampled}, or the interval" in markdown
        assert ("group with one seed says nothing about other seeds" in markdown) is has_single


def with_intervals(comparison, change):
    """Return a comparison whose points have other intervals and no gains."""

    def changed(point):
        low, high = change(point)
        return replace(point, ci_low=low, ci_high=high, gain=None)

    curves = [replace(c, points=tuple(map(changed, c.points))) for c in comparison.curves]
    return replace(comparison, curves=curves)


@pytest.mark.parametrize("show", ["perplexity", "nats"])
def test_an_interval_wider_than_its_value_is_shown_by_its_ends_where_there_is_room(one, show):
    def change(point):
        low, high = point.nll - 0.1, point.nll + 0.1
        return (low, point.nll * 4) if point.length == 64 else (low, high)

    found = replace(with_intervals(one, change), show=show)
    point = values(found, "trained")[64]
    ends = (point.nll - 0.1, point.nll * 4)
    low, high = (perplexity_text(e) if show == "perplexity" else f"{e:.3f}" for e in ends)
    shown = f" [{low}, {high}]"
    wide = " ".join(printed(found, 120).split())
    assert shown in wide
    assert (
        "; [ ] the ends of the 95% interval over documents, where it is wider than the value; "
        in wide
    )
    assert shown.replace("[", r"\[").replace("]", r"\]") in comparison_markdown(found)
    close = " ".join(printed(found, 60).split())
    assert "[" not in close
    assert "; intervals without room: in comparison.md; " in close
    assert close.count("±") == 2 * 3 + 1  # none at 64; and what it means


def test_intervals_that_do_not_exist_are_not_explained(one):
    text = printed(with_intervals(one, lambda _: (math.nan, math.nan)), 100)
    assert text.rstrip().endswith("• best of its column")
    assert "±" not in text


def test_differences_that_three_decimals_do_not_show_are_zero(one):
    estimates = {
        8: Estimate(-0.0004, -0.00049, 0.0),
        16: Estimate(0.0, 0.0, 0.0),
        32: Estimate(-0.0001, -0.02, 0.0003),
        64: Estimate(0.0006, -0.0004, 0.0016),
    }
    curves = [
        replace(c, points=tuple(replace(p, gain=estimates[p.length]) for p in c.points))
        for c in one.curves
    ]
    found = replace(one, curves=curves)
    gains = comparison_markdown(found).partition("gain over truncation")[2].partition("\n\n")[2]
    assert r"| one | yarn-4 | 0 | 0 | 0 \[-0.020, 0\] | +0.001 \[0, +0.002\] |" in gains
    assert "0.000" not in gains
    zero = replace(curves[0].points[-1], gain=estimates[8])
    assert estimate_cell(zero.gain)[:2] == ("0", "")
    assert estimate_cell(estimates[64])[:2] == ("+0.001", "±0.0010")


@pytest.mark.parametrize(("tied", "is_bold"), [(2, True), (3, False), (4, False)])
def test_nothing_is_the_best_where_more_than_half_of_a_column_ties(two, tied, is_bold):
    """At 16, `tied` of four curves differ by less than the shown digits, the others are worse."""

    def changed(place, point):
        nll = 1.0 + 1e-6 * place if place < tied else 1.5
        return replace(point, nll=nll) if point.length == 16 else point

    curves = [
        replace(c, points=tuple(changed(place, p) for p in c.points))
        for place, c in enumerate(two.curves)
    ]
    markdown = comparison_markdown(replace(two, curves=curves))
    assert markdown.count("**2.72**") == 2 * tied * is_bold  # by two protocols
    assert f"{math.e:.2f}" in markdown
