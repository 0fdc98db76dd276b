"""comparison.tex has the values of comparison.md."""

import re

import pytest

from rope_jax.comparison.comparable import find_mismatches
from rope_jax.comparison.curves import compare
from rope_jax.comparison.read import find_sweeps, read_sweep
from rope_jax.config.presentation import CompareConfig
from rope_jax.report.comparison import comparison_latex
from rope_jax.report.measured import measured_cell


@pytest.mark.parametrize("show", ["perplexity", "nats", "bits_per_byte"])
def test_every_point_is_in_the_table_of_its_protocol(sweep_of, show):
    runs = [sweep_of("a_1", model="hidden_size: 32"), sweep_of("b", shift=0.5)]
    sweeps = [read_sweep(folder) for folder in find_sweeps(runs, None)]
    compared = compare(
        sweeps, find_mismatches(sweeps), CompareConfig(resamples=50, show=show, tolerance=0.5)
    )
    tables = comparison_latex(compared).split("\\begin{tabular}")[1:]
    assert len(tables) == 2
    for protocol, table in zip(("same_tokens", "whole_window"), tables, strict=True):
        usable = ["usable"] * (protocol == "same_tokens")
        heading, *lines = re.findall(r"^  (.*) \\\\$", table, re.MULTILINE)
        heading = heading.split(" & ")
        assert heading == ["runs", "differs in", "scaling", "8", "16", "32", "64", *usable]
        assert table.startswith("{lll" + "r" * (len(heading) - 3) + "}")
        for line, curve in zip(lines, compared.curves, strict=True):
            group, settings, name, *values = line.split(" & ")
            if group:  # written once for each group
                assert group == curve.group.label.replace("_", r"\_")
                size = curve.group.settings["model.hidden_size"]
                assert settings == rf"model.hidden\_size {size}"
            assert name == curve.name
            points = [point for point in curve.points if point.protocol == protocol]
            for text, point in zip(values, points, strict=False):
                shown = measured_cell(point, show)
                assert re.sub(r"\\textbf\{(.*?)\}", r"\1", text).startswith(f"{shown.value} ")
                assert shown.interval.removeprefix("±") in text
    assert r"\textbf{" in tables[0]


def comments(compared):
    """Return the comments above the first table, as one text."""
    above = comparison_latex(compared).split("\\begin{tabular}")[0]
    return " ".join(line.removeprefix("% ") for line in above.splitlines())


def compare_runs(runs, **settings):
    sweeps = [read_sweep(folder) for folder in find_sweeps(runs, None)]
    return compare(sweeps, find_mismatches(sweeps), CompareConfig(resamples=50, **settings))


def test_the_comments_say_what_a_caption_has_to(sweep_of):
    one = [sweep_of("a-s0", seed=0), sweep_of("a-s3", seed=3)]
    text = comments(compare_runs(one, tolerance=0.5))
    assert "Perplexity by context length, on the same tokens at every length; test split" in text
    assert "± half of the 95% interval over documents and seeds, or the interval itself" in text
    assert "a (2 seeds): seeds 0, 3; step 100; trained at 16 tokens." in text
    assert "Truncation: only the last 16 tokens are kept." in text
    assert "stays within 0.5 nats per token of truncation, which is trained at the window" in text
    assert "too few" not in text
    other = sweep_of("b", seed=3, model="hidden_size: 32")
    text = comments(compare_runs([*one, other]))
    assert "a (2 seeds): seeds 0, 3; step 100; trained at 16 tokens." in text
    assert "b: seed 3; step 100; trained at 16 tokens." in text
    assert "Truncation:" not in text


@pytest.mark.parametrize("show", ["perplexity", "nats", "bits_per_byte"])
def test_a_single_group_has_a_row_of_truncation(sweep_of, show):
    compared = compare_runs([sweep_of("a")], show=show)
    first, second = comparison_latex(compared).split("\\begin{tabular}")[1:]
    trained = next(curve for curve in compared.curves if curve.name == "trained")
    (at_window,) = (p for p in trained.points if (p.protocol, p.length) == ("same_tokens", 16))
    value = measured_cell(at_window, show).value
    (line,) = (line for line in first.splitlines() if "truncation" in line)
    assert line.removesuffix(r" \\").split(" & ") == ["  truncation", "", "", *[value] * 3, ""]
    assert "truncation" not in second  # whole_window scores other tokens
