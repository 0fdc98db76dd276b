"""Text and tables as LaTeX."""

import re

import pytest

from rope_jax.report.table import Cell, Line, Table, escape_latex, format_latex, latex_cell


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("dynamic_ntk", r"dynamic\_ntk"),
        ("100% of $x & #1", r"100\% of \$x \& \#1"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("a~b^c", r"a\textasciitilde{}b\textasciicircum{}c"),
        ("yarn-4 --x", "yarn-4 -{}-x"),
        ("≥ 1,024 †", r"$\geq$ 1,024 \dag{}"),
        ("256–512", r"256\textendash{}512"),
        ("é θ", "é U+03B8"),
        ("\x1b[31m\n", r"\textbackslash{}x1b[31m\textbackslash{}n"),  # for a terminal to obey
    ],
)
def test_text_is_shown_as_it_is(text, latex):
    assert escape_latex(text) == latex


@pytest.mark.parametrize(
    ("cell", "latex"),
    [
        (("4.10", "±0.57", False), r"4.10 {\scriptsize $\pm$0.57}"),
        (("4.10", "", True), r"\textbf{4.10}"),
        (("", "", True), ""),
        (("e^12.5", "[0.05, e^13.0]", False), r"$e^{12.5}$ {\scriptsize [0.05, $e^{13.0}$]}"),
        (("-0.5", "", False), "$-$0.5"),
    ],
)
def test_a_cell_is_a_value_and_its_interval(cell, latex):
    value, interval, is_best = cell
    assert latex_cell(Cell(value, interval, is_best=is_best)) == latex


def test_a_table_is_one_environment_with_booktabs_rules():
    table = Table(
        title="x",
        caption="long " * 40,
        labels=("scaling",),
        columns=("64",),
        lines=[Line(("a",), [Cell("1")])],
        below=[Line(("b",), [Cell("2")])],
    )
    text = format_latex(table)
    comments = re.findall(r"^% .*$", text, re.MULTILINE)
    assert len(comments) > 1
    assert max(map(len, comments)) <= 98
    assert text.partition(r"\begin")[2].splitlines() == [
        "{tabular}{lr}",
        r"  \toprule",
        r"  scaling & 64 \\",
        r"  \midrule",
        r"  a & 1 \\",
        r"  \midrule",
        r"  b & 2 \\",
        r"  \bottomrule",
        r"\end{tabular}",
    ]
