"""A sweep in the terminal: one line per curve, readable numbers, names as they are."""

import dataclasses
import io
import math
import re

import pytest
from rich.console import Console

from rope_jax.report.terminal import (
    SweepProgress,
    print_sweep,
    warn_of_chance,
)
from rope_jax.report.text import usable_text
from rope_jax.results.rows import Row
from rope_jax.results.statistics import Estimate, UsableLength
from rope_jax.results.summary import CheckpointSummary, CurveSummary, SweepSummary


def row(name, length, nll, half=0.1, **fields):
    nll = float(nll)
    values = {field: None for field in Row._fields}
    values |= {"ppl": math.exp(nll) if nll < 700 else math.inf}
    values |= {"name": name, "scaling": "none", "protocol": "same_tokens", "length": length}
    values |= {"auto": False}
    values |= {"step": 500}
    values |= {"first_position": length - 3, "last_position": length, "tokens": 120}
    values |= {"nll": nll, "ci_low": nll - half, "ci_high": nll + half, "documents": 24}
    values |= {"units": 24, "seed": 0, "split": "test", "map": ""}
    values |= {"metric": "nats", "value": nll} | fields
    return Row(**values)


EQUAL = Estimate(0.0, 0.0, 0.0)


def summary_of(units=24, kind="documents", documents=24, **usable):
    """Return a summary; usable: the usable length of each curve."""
    curves = {
        name: CurveSummary(
            usable=length,
            usable_at_most=length,
            blow_up={16: EQUAL, 64: EQUAL},
            gain_over_truncation={16: EQUAL, 64: EQUAL},
            difference_from_trained={},
        )
        for name, length in usable.items()
    }
    newest = CheckpointSummary(
        run="demo",
        step=500,
        window=16,
        nll_at_window=1.0,
        perplexity_at_window=math.e,
        bpb_at_window=1.5,
        tolerance=0.02,
        documents=documents,
        unit_kind=kind,
        units=units,
        distance=4096,
        compilations=1,
        curves=curves,
    )
    return SweepSummary(newest=newest)


def printed(rows, summary, width=200, **options):
    # a console with markup: names must be printed as they are even there
    console = Console(file=io.StringIO(), width=width)
    print_sweep(console, rows, summary, **options)
    return console.file.getvalue()


AT_WINDOW = UsableLength(length=128, is_last=False, is_known=True)
AT_LAST = UsableLength(length=2048, is_last=True, is_known=True)
LENGTHS = (64, 128, 256, 512, 1024, 2048)
# nats per token of the README's demo
DEMO = {
    "trained": (1.411, 1.403, 2.225, 2.733, 3.180, 3.427),
    "yarn-auto": (1.411, 1.403, 1.463, 1.714, 1.920, 2.300),
    "rerope-logn": (1.411, 1.403, 1.391, 1.350, 1.300, 1.250),
}


def demo(width, show="perplexity", **options):
    """Return what is printed for three curves, of which rerope-logn is below truncation."""
    table = [
        row(name, length, nll, tokens=2048, units=options.get("units", 24))._replace(
            bpb=1.5 * nll, bpb_low=1.5 * nll - 0.15, bpb_high=1.5 * nll + 0.15
        )
        for name, values in DEMO.items()
        for length, nll in zip(LENGTHS, values, strict=True)
    ]
    summary = summary_of(**(dict.fromkeys(DEMO, AT_WINDOW) | {"rerope-logn": AT_LAST}), **options)
    newest = dataclasses.replace(
        summary.newest, window=128, nll_at_window=1.403, perplexity_at_window=math.exp(1.403)
    )
    for name, values in DEMO.items():
        gains = {
            n: Estimate(1.403 - nll, 1.353 - nll, 1.453 - nll)
            for n, nll in zip(LENGTHS, values, strict=True)
        }
        ratios = {n: gain.negated().mapped(math.exp) for n, gain in gains.items()}
        newest.curves[name] = dataclasses.replace(
            newest.curves[name], gain_over_truncation=gains, blow_up=ratios
        )
    return printed(table, dataclasses.replace(summary, newest=newest), width, show=show)


def test_a_curve_is_one_line_that_fits_80_columns():
    assert demo(80).splitlines() == [
        "perplexity by context length; same_tokens, 2,048 tokens of 24 documents",
        "scaling            64       128       256        512       1,024       2,048",
        "trained     4.10±0.41 4.07±0.41 9.25±0.93  15.38±1.5   24.05±2.4   30.78±3.1",
        "yarn-auto   4.10±0.41 4.07±0.41 4.32±0.43  5.55±0.56   6.82±0.68    9.97±1.0",
        "rerope-logn 4.10±0.41 4.07±0.41 4.02±0.40• 3.86±0.39•* 3.67±0.37•* 3.49±0.35•*",
        "truncation                 4.07      4.07       4.07        4.07        4.07",
        "usable: rerope-logn ≥ 2,048; all others 128",
        "",
        "± half of the 95% interval; • best of its column;",
        "* below truncation by more than the interval of the difference;",
        "truncation: only the last 128 tokens are kept;",
        "usable: within 0.02 nats of truncation",
    ]


def test_a_wide_console_gets_usable_length_gain_and_blow_up():
    _, heading, trained, _, rerope, *_, explained = demo(160).splitlines()
    assert heading.endswith("2,048     usable           gain       blow-up")
    assert trained.endswith("30.78 ±3.1        128  -2.024 ±0.050    7.57 ±0.38")
    assert rerope.endswith("3.49 ±0.35•*  ≥ 2,048  +0.153 ±0.050  0.858 ±0.043")
    assert explained.endswith(
        "gain: nats below truncation at the longest; blow-up: perplexity there over that of "
        "truncation"
    )


def test_nats_and_bits_per_byte_are_listed_instead():
    first, _, nats, *_ = demo(120, "nats").splitlines()
    assert first.startswith("nats per token by context length")
    assert nats.startswith("trained      1.411 ±0.10  1.403 ±0.10  2.225 ±0.10 ")
    first, _, bits, *_ = demo(120, "bits_per_byte").splitlines()
    assert first.startswith("bits per byte by context length")
    assert bits.startswith("trained      2.117 ±0.15  2.104 ±0.15  3.338 ±0.15 ")
    # not every tokenizer's bytes per token are known
    (said, *_) = printed([row("trained", 16, 1.0)], summary_of(), show="bits_per_byte").splitlines()
    assert said.startswith("nats per token")


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 120])
@pytest.mark.parametrize("show", ["perplexity", "nats", "bits_per_byte"])
def test_no_number_is_folded_however_narrow_the_console(width, show):
    lines = demo(width, show).splitlines()
    assert max(map(len, lines)) <= width
    values = re.compile(r"(?<![±.\d])\d+\.\d+")

    def of_curve(name, text):
        return [v for line in text if line.startswith(name) for v in values.findall(line)][:6]

    for name in DEMO:
        assert of_curve(name, lines) == of_curve(name, demo(200, show).splitlines())


def test_without_room_for_every_interval_the_file_that_has_them_is_named():
    text = demo(60)
    trained = text.splitlines()[3]
    assert trained.split() == ["trained", "4.10", "4.07", "9.25", "15.38", "24.05", "30.78"]
    assert "intervals without room: in results.csv;" in text
    assert "results.csv" not in demo(80)


def test_the_best_value_as_shown_is_marked_unless_most_have_it():
    def marked(**nll):
        table = [row(name, 16, value) for name, value in nll.items()]
        lines = printed(table, summary_of()).splitlines()
        return [line.split()[0] for line in lines if "•" in line and "best" not in line]

    assert marked(a=1.5, b=1.0, c=1.1) == ["b"]
    assert marked(a=1.5, b=1.0, c=1.0001, d=1.1) == ["b", "c"]  # 2.72 and 2.72
    assert marked(a=1.0, b=1.0, c=1.0, d=1.1) == []
    assert marked(a=1.0) == []


def test_few_units_mark_nothing_as_below_truncation():
    assert "*" in demo(120)
    assert "*" not in demo(120, units=19)


def test_blocks_are_explained():
    assert "blocks" not in demo(80)
    text = demo(80, units=33, kind="blocks", documents=3)
    assert text.endswith(
        "intervals resample 33 blocks of 3 documents, more than 4,096 tokens apart: they\n"
        "hold for these documents, not for others\n"
    )


def test_a_very_wide_interval_is_shown_by_its_ends():
    unknown = UsableLength(length=16, is_last=False, is_known=False)
    table = [row("trained", 16, 1.0), row("trained", 64, 1.247, half=11.3)]
    text = printed(table, summary_of(trained=unknown))
    assert "±0.27" in text
    assert "[0.00, e^12.5]" in text
    assert "e+" not in text


@pytest.mark.parametrize(
    ("usable", "text"),
    [
        (UsableLength(length=1024, is_last=False, is_known=True), "1,024"),
        (UsableLength(length=1024, is_last=True, is_known=True), "≥ 1,024"),
        (UsableLength(length=None, is_last=False, is_known=True), "none"),
        # too few documents: whether the next length passes is unknown, so no "≥"
        (UsableLength(length=256, is_last=False, is_known=False), "256 (no interval)"),
        (UsableLength(length=None, is_last=False, is_known=False), "–"),
    ],
)
def test_a_usable_length_claims_no_more_than_is_known(usable, text):
    assert usable_text(usable) == text
    for units, why in (
        (24, "no interval: too few documents for one at the next length"),
        (19, "no interval: by the values alone, with fewer than 20 documents"),
    ):
        shown = printed([row("trained", 16, 1.0)], summary_of(units=units, trained=usable))
        assert f" {text} " in shown
        assert (why in shown) == (not usable.is_known)


@pytest.mark.parametrize("name", ["[red]x", "[/]", ":smile:"])
def test_names_are_printed_as_they_are(name):
    usable = UsableLength(length=16, is_last=True, is_known=True)
    early = dataclasses.replace(summary_of().newest, step=100)
    summary = dataclasses.replace(summary_of(**{name: usable}), earlier=(early,))
    table = [row(name, 16, 1.0, protocol=p) for p in ("same_tokens", "sliding")]
    table += [row(name, 16, 2.0, protocol=p, step=100) for p in ("same_tokens", "sliding")]
    # in both tables of both protocols
    lines = printed(table, summary).splitlines()
    assert sum(line.split()[:1] == [name] for line in lines) == 4


def test_progress_prints_text_as_it_is():
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    with SweepProgress(console, [1]) as bar:
        bar.of_checkpoint(1)("length [red]64[/]", 3, 4)
    assert "length [red]64[/]" in console.file.getvalue()


def test_an_nll_above_that_of_equal_probabilities_is_warned_of():
    console = Console(file=io.StringIO(), width=60)
    warn_of_chance(console, math.log(512), 512)
    assert console.file.getvalue() == ""
    warn_of_chance(console, 11.0, 512)
    assert console.file.getvalue() == (
        "11.00 nats per token at the window are worse than chance, ln V = 6.24 for V = 512: the "
        "tokenizer and the weights may not belong together, or the model is untrained\n"
    )
