"""A sweep in the terminal: readable numbers, and names as they are."""

import dataclasses
import io
import math

import pytest
from rich.console import Console

from rope_jax.evaluation.results import Row
from rope_jax.evaluation.statistics import UsableLength
from rope_jax.evaluation.summary import CheckpointSummary, CurveSummary, SweepSummary
from rope_jax.evaluation.text import usable_text
from rope_jax.sweeps.terminal import SweepProgress, print_tables


def row(name, length, nll, half=0.1, **fields):
    values = {field: None for field in Row._fields}
    values |= {"name": name, "protocol": "same_tokens", "length": length, "step": 500}
    values |= {"first_position": length - 3, "last_position": length, "tokens": 120}
    values |= {"nll": nll, "ci_low": nll - half, "ci_high": nll + half, "documents": 24}
    return Row(**(values | fields))


def summary_of(**usable):
    curves = {
        name: CurveSummary(
            usable=length,
            usable_at_most=length,
            blow_up={},
            gain_over_truncation={},
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
        bpb_at_window=None,
        tolerance=0.02,
        documents=24,
        unit_kind="documents",
        units=24,
        distance=64,
        compilations=1,
        curves=curves,
    )
    return SweepSummary(newest=newest)


def printed(rows, summary):
    # a console with markup: names must be printed as they are even there
    console = Console(file=io.StringIO(), width=200)
    print_tables(console, rows, summary)
    return console.file.getvalue()


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
    assert usable_text(**usable._asdict()) == text
    shown = printed([row("trained", 16, 1.0)], summary_of(trained=usable))
    assert f" {text} " in shown
    assert ("no interval: too few documents" in shown) == (not usable.is_known)


@pytest.mark.parametrize("name", ["[red]x", "[/]", ":smile:"])
def test_names_are_printed_as_they_are(name):
    usable = UsableLength(length=16, is_last=True, is_known=True)
    early = dataclasses.replace(summary_of().newest, step=100)
    summary = dataclasses.replace(summary_of(**{name: usable}), earlier=(early,))
    table = [row(name, 16, 1.0, protocol=p) for p in ("same_tokens", "sliding")]
    table += [row(name, 16, 2.0, protocol=p, step=100) for p in ("same_tokens", "sliding")]
    # in both tables of both protocols
    assert printed(table, summary).count(f" {name} ") == 4


def test_progress_prints_text_as_it_is():
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    with SweepProgress(console, [1]) as bar:
        bar.of_checkpoint(1)("length [red]64[/]", 3, 4)
    assert "length [red]64[/]" in console.file.getvalue()
