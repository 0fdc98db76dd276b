"""comparison.tex has the values of comparison.md."""

import re

import pytest

from rope_jax.comparison.cells import cell
from rope_jax.comparison.comparable import find_mismatches
from rope_jax.comparison.curves import compare
from rope_jax.comparison.find import find_sweeps
from rope_jax.comparison.latex import format_latex
from rope_jax.comparison.read import read_sweep
from rope_jax.config.comparison import CompareConfig


@pytest.mark.parametrize("show", ["perplexity", "nats", "bits_per_byte"])
def test_every_point_is_in_the_table_of_its_protocol(sweep_of, show):
    runs = [sweep_of("a_1", model="hidden_size: 32"), sweep_of("b", shift=0.5)]
    sweeps = [read_sweep(folder) for folder in find_sweeps(runs, None)]
    compared = compare(
        sweeps, find_mismatches(sweeps), CompareConfig(resamples=50, show=show, tolerance=0.5)
    )
    tables = format_latex(compared).split("\\begin{tabular}")[1:]
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
                shown = cell(point, show)
                assert re.sub(r"\\textbf\{(.*?)\}", r"\1", text).startswith(f"{shown.value} ")
                assert shown.interval.removeprefix("±") in text
    assert r"\textbf{" in tables[0]
