"""A sweep in the terminal: one line per curve, readable numbers, names as they are."""

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from rope_jax.comparison.curves import compare_checkpoints
from rope_jax.config.presentation import Presentation
from rope_jax.console import plain_console
from rope_jax.report.measured import usable_text
from rope_jax.report.terminal import SweepProgress, print_comparison, print_sweep, warn_of_chance
from rope_jax.results.files import SweepTables
from rope_jax.results.statistics import Estimate, UsableLength
from tests.comparison.conftest import compared
from tests.report.rows import checkpoint, curve, row

AT_WINDOW = UsableLength(length=128, is_last=False, is_known=True)
AT_LAST = UsableLength(length=2048, is_last=True, is_known=True)
LENGTHS = (64, 128, 256, 512, 1024, 2048)
# nats per token of the README's demo
DEMO = {
    "trained": (1.411, 1.403, 2.225, 2.733, 3.180, 3.427),
    "yarn-auto": (1.411, 1.403, 1.463, 1.714, 1.920, 2.300),
    "rerope-logn": (1.411, 1.403, 1.391, 1.350, 1.300, 1.250),
}


def printed(rows, newest, width=200, earlier=(), show="perplexity"):
    # a console with markup: names must be printed as they are even there
    console = Console(file=io.StringIO(), width=width)
    comparison = compare_checkpoints(rows, [newest, *earlier], Presentation(show=show))
    print_sweep(console, comparison, SweepTables([], [], [newest]))
    return re.sub(" +$", "", console.file.getvalue(), flags=re.MULTILINE)


def demo(width, show="perplexity", **fields):
    """Return what is printed for three curves, of which rerope-logn is below truncation."""
    table = []
    curves = {}
    for name, values in DEMO.items():
        for n, nll in zip(LENGTHS, values, strict=True):
            bits = {"bpb": 1.5 * nll, "bpb_low": 1.5 * nll - 0.15, "bpb_high": 1.5 * nll + 0.15}
            table.append(row(name, n, nll, tokens=2048, units=fields.get("units", 24), **bits))
        above = {
            n: Estimate(nll - 1.403, nll - 1.453, nll - 1.353)
            for n, nll in zip(LENGTHS, values, strict=True)
        }
        usable = AT_LAST if name == "rerope-logn" else AT_WINDOW
        curves[name] = curve(usable, above_truncation=above)
    newest = checkpoint(window=128, nll_at_window=1.403, curves=curves, **fields)
    return printed(table, newest, width, show=show)


def test_a_curve_is_one_line_with_its_intervals_if_there_is_room():
    title, heading, *_, rerope, truncation, _ = demo(93).partition("± half")[0].split("\n")
    assert title == "same_tokens: perplexity by context length, on the same tokens at every length"
    assert heading.split() == ["scaling", *(f"{n:,}" for n in LENGTHS), "usable"]
    close = "4.10±0.41 4.07±0.41 4.02±0.40•  3.86±0.39•*  3.67±0.37•*  3.49±0.35•* ≥ 2,048"
    assert rerope == f"rerope-logn {close}"
    assert truncation.split() == ["truncation", *["4.07"] * 5]
    assert "± half of the 95% interval over documents; • best of its column; " in demo(200)
    assert "4.10 ±0.41  4.07 ±0.41" in demo(120)


def test_80_columns_have_every_length_in_one_table_and_say_where_the_intervals_are():
    line = "rerope-logn  4.10  4.07  4.02•   3.86•*   3.67•*   3.49•*  ≥ 2,048\n"
    assert line in demo(80)
    assert "results.md has the 95% intervals; • best of its column;" in demo(80)


def test_no_number_is_folded_however_narrow_the_console():
    values = re.compile(r"(?<![±.\d])\d+\.\d+")
    for width in (24, 40, 60, 100):
        lines = demo(width).splitlines()
        assert max(map(len, lines)) <= width
        for name, nlls in DEMO.items():
            own = [v for line in lines if line.startswith(name) for v in values.findall(line)]
            assert own[: len(LENGTHS)] == [f"{math.exp(nll):.2f}" for nll in nlls]


def test_the_best_value_as_shown_is_marked_unless_most_have_it():
    for nll, best in (
        ({"a": 1.5, "b": 1.0, "c": 1.1}, ["b"]),
        ({"a": 1.5, "b": 1.0, "c": 1.0001, "d": 1.1}, ["b", "c"]),  # 2.72 and 2.72
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.1}, []),
        ({"a": 1.0}, []),
    ):
        rows = [row(name, 16, value) for name, value in nll.items()]
        lines = printed(rows, checkpoint()).splitlines()
        assert [line[0] for line in lines if "•" in line and "best" not in line] == best


def test_few_units_mark_nothing_as_below_truncation_and_blocks_are_explained():
    assert "*" in demo(120)
    assert "*" not in demo(120, units=19)
    assert "intervals resample" not in demo(80)
    text = demo(80, units=33)
    assert "intervals resample 33 blocks of 24 documents, which are too few: they hold" in text


def test_a_usable_length_claims_no_more_than_is_known():
    shown = {
        UsableLength(length=1024, is_last=False, is_known=True): "1,024",
        UsableLength(length=1024, is_last=True, is_known=True): "≥ 1,024",
        UsableLength(length=None, is_last=False, is_known=True): "none",
        # too few documents: whether the next length passes is unknown, so no "≥"
        UsableLength(length=256, is_last=False, is_known=False): "256 (no interval)",
        UsableLength(length=None, is_last=False, is_known=False): "–",
    }
    assert {usable: usable_text(usable) for usable in shown} == shown
    unknown = {"trained": curve(UsableLength(length=256, is_last=False, is_known=False))}
    few = printed([row("trained", 16, 1.0)], checkpoint(curves=unknown))
    assert "no interval: too few documents or blocks to know whether a longer one" in few


def test_lines_in_a_file_give_the_time_left_without_what_came_before_the_first_step():
    now = [0.0]
    console = Console(file=io.StringIO(), width=100, get_time=lambda: now[0])
    with SweepProgress(console, [1]) as bar:
        update = bar.of_checkpoint(1)
        update("compiling", 0.0, 100.0)
        for seconds, done in ((500, 0), (501, 1), (502, 2), (531, 31), (561, 61), (592, 92)):
            now[0] = float(seconds)
            update("length 64", float(done), 100.0)
        update("done", 100.0, 100.0)
    assert console.file.getvalue().splitlines() == [
        "length 64; 0% done",
        "length 64; 61% done, about 39 seconds left",
    ]


def test_earlier_checkpoints_have_a_line_each():
    nlls = ((100, 3.0, 4.0), (300, 2.5, 3.0), (500, 2.0, 2.5))
    table = [
        row(name, n, nll, step=step)
        for step, *losses in nlls
        for name in ("trained", "yarn-4")
        for n, nll in zip((16, 32), losses, strict=True)
    ]
    text = printed(table, checkpoint(), earlier=tuple(checkpoint(step=s) for s in (100, 300)))
    assert [line.split() for line in text.splitlines()[1:6]] == [
        ["step", "16", "32"],
        ["trained"],
        ["step", "100", "20.09", "±2.01", "54.60", "±5.47"],
        ["step", "300", "12.18", "±1.22", "20.09", "±2.01"],
        ["step", "500", "7.39", "±0.74•", "12.18", "±1.22•"],
    ]


def test_an_nll_above_that_of_equal_probabilities_is_warned_of():
    console = Console(file=io.StringIO(), width=60)
    warn_of_chance(console, math.log(512), 512)
    assert console.file.getvalue() == ""
    warn_of_chance(console, 11.0, 512)
    assert "worse than chance, ln V = 6.24 for V = 512: " in console.file.getvalue()


WAYS = {"yarn_offsets": {8: 0.0, 16: 0.0, 32: -0.25, 64: 1.0}}


def printed_comparison(comparison, width, make=plain_console, **options):
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


def test_groups_have_headings_and_notes_that_say_what_differs(two):
    text = printed_comparison(two, 80)
    trained = "  trained  12.17 ±2.91   9.48 ±2.26•  15.63 ±3.73    42.48 ±10.15       16\n"
    assert f"\nfirst\n{trained}" in text
    assert "\nsecond\n" in text
    assert "first: seed 0, step 100, trained at 16 tokens, model.hidden_size 16;\n" in text
    assert text.endswith("\nsecond: seed 0, step 100, trained at 16 tokens, model.hidden_size 32\n")
    # a marked group has no best values
    marked = replace(two.groups[0], marked=True)
    curves = [replace(c, group=marked) if c.group is two.groups[0] else c for c in two.curves]
    text = printed_comparison(replace(two, groups=[marked, two.groups[1]], curves=curves), 80)
    first, _, second = text.partition("\nsecond\n")
    assert "•" not in first
    assert "•" in second.partition("best")[0]


def test_intervals_over_seeds_may_be_wider_than_their_values(sweep_of):
    seeds = [sweep_of(f"a-s{seed}", seed=seed, shift=0.2 * seed, own=None) for seed in (0, 1)]
    other = sweep_of("b", shift=-0.5, own=None, model="hidden_size: 32")
    lines = printed_comparison(compared(*seeds, other), 100).splitlines()
    assert lines[0].startswith("same_tokens: perplexity of yarn-4 by context length, on the same")
    assert re.search(r"^a \(2 seeds\) +17\.35\[4\.42, 67\.41\] ", lines[2])
    assert re.search(r"^b +9\.50±2\.24• ", lines[3])
    over = "± half of the 95% interval over documents and, where a group has several, seeds, or [ ]"
    assert over in " ".join(lines)
    text = " ".join(printed_comparison(compared(*seeds), 100).splitlines())
    assert "± half of the 95% interval over documents and seeds, or [ ] its ends where" in text
    assert "one seed" not in text
