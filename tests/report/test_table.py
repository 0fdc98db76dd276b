"""Text, numbers and tables as Markdown and LaTeX; results.md and results.tex."""

import math
import re

import pytest

from rope_jax.comparison.curves import compare_checkpoints
from rope_jax.config.presentation import Presentation
from rope_jax.report.comparison import results_texts
from rope_jax.report.measured import interval_text, loss_cells
from rope_jax.report.table import (
    Cell,
    Line,
    Table,
    escape_latex,
    escape_markdown,
    format_latex,
    latex_cell,
)
from rope_jax.results.files import SweepTables
from rope_jax.results.statistics import Estimate, UsableLength
from tests.report.rows import checkpoint, curve, row

NLLS = {"trained": {16: 1.0, 32: 3.0}, "yarn_a-4": {16: 1.0, 32: 1.5}, "pi": {16: 1.25, 32: 2.0}}
ROWS = [
    row(name, n, nll, bpb=nll / 2, bpb_low=nll / 2 - 0.05, bpb_high=nll / 2 + 0.05)
    for name, by_length in NLLS.items()
    for n, nll in by_length.items()
]
USABLE = UsableLength(length=16, is_last=True, is_known=True)
CHECKPOINT = checkpoint(curves={name: curve(USABLE) for name in NLLS})
# at 16, most curves share the lowest value, so none is the best
SHOWN = {
    "perplexity": {
        "trained": ["2.72 ±0.27", "20.09 ±2.01"],
        "yarn_a-4": ["2.72 ±0.27", "**4.48** ±0.45"],
        "pi": ["3.49 ±0.35", "7.39 ±0.74"],
        "truncation": ["2.72", "2.72"],
    },
    "nats": {
        "trained": ["1.000 ±0.100", "3.000 ±0.100"],
        "yarn_a-4": ["1.000 ±0.100", "**1.500** ±0.100"],
        "pi": ["1.250 ±0.100", "2.000 ±0.100"],
        "truncation": ["1.000", "1.000"],
    },
    "bits_per_byte": {
        "trained": ["0.500 ±0.050", "1.500 ±0.050"],
        "yarn_a-4": ["0.500 ±0.050", "**0.750** ±0.050"],
        "pi": ["0.625 ±0.050", "1.000 ±0.050"],
        "truncation": ["0.500", "0.500"],
    },
}


def texts(show, rows=ROWS):
    """Return results.md and results.tex."""
    comparison = compare_checkpoints(rows, [CHECKPOINT], Presentation(show=show))
    return results_texts(comparison, SweepTables([], [], [CHECKPOINT]))


@pytest.mark.parametrize("show", SHOWN)
def test_markdown_and_latex_list_values_with_intervals(show):
    text, latex = texts(show)
    assert text.startswith("# demo, step 500\n\n## `same_tokens`\n\n")
    table = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    heading, rule, *lines = ([cell.strip() for cell in line] for line in table)
    lines = lines[: len(SHOWN[show])]
    assert heading == ["scaling", "16", "32", "usable"]
    assert rule == ["---", "---:", "---:", "---:"]
    assert {name: values for name, *values, _ in lines} == SHOWN[show]
    assert [line[-1] for line in lines] == ["≥ 16"] * 3 + [""]
    for said in ("test split, 120 tokens in 24 documents", "trained at 16 tokens", "0.02 nats"):
        assert said in text
    found = {}
    for line in re.findall(r"^  (.*) \\\\$", latex.partition(r"\midrule")[2], re.MULTILINE):
        line = re.sub(r" \{\\scriptsize \$\\pm\$([\d.]+)\}", r" ±\1", line)
        name, *values, _ = re.sub(r"\\textbf\{(.*?)\}", r"**\1**", line).split(" & ")
        found[name.replace("\\_", "_")] = values
    assert found == SHOWN[show]
    assert r"yarn\_a-4 & " in latex
    assert latex.count(r"\begin{tabular}{lrrr}") == latex.count(r"\end{tabular}") == 1
    assert all(line.startswith("%") for line in latex.partition(r"\begin")[0].splitlines())


def test_each_protocol_has_a_table_and_usable_lengths_are_of_same_tokens():
    rows = [*ROWS, *(r._replace(protocol="per_position") for r in ROWS)]
    text, latex = texts("nats", rows)
    _, one, other = text.split("\n## ")
    assert "truncation" in one
    assert "| scaling | 13–16 | 29–32 |\n" in other
    assert "truncation" not in other.lower()
    assert latex.count(r"\begin{tabular}") == 2
    assert r"scaling & 13\textendash{}16 & 29\textendash{}32 \\" in latex


def test_without_bytes_per_token_bits_turn_into_nats_and_few_units_are_said_to_be_few():
    text, _ = texts("bits_per_byte", [r._replace(bpb=None) for r in ROWS])
    assert "Nats per token by context length" in text
    assert "1.250 ±0.100" in text
    text, _ = texts("nats", [r._replace(documents=2, units=12, reliable=False) for r in ROWS])
    assert "test split, 120 tokens in 12 blocks of 2 documents; " in text
    assert "> intervals are unreliable below 20 blocks; here: 12\n" in text


def test_markdown_is_escaped():
    shown = {
        "runs/a_b corpus: one": "runs/a_b corpus: one",
        "a|b`c` [x](y) <b>": r"a\|b\`c\` \[x\](y) \<b\>",
        "https://a.b www.a.b a@b.c": r"https\://a.b www\.a.b a\@b.c",
        "a\n# b\x1b": r"a\\n\# b\\x1b",
        "_a_ **b**": r"\_a\_ \*\*b\*\*",
    }
    assert {text: escape_markdown(text) for text in shown} == shown


def test_latex_is_escaped():
    shown = {
        "dynamic_ntk 100% of $x & #1": r"dynamic\_ntk 100\% of \$x \& \#1",
        r"\input{x} a~b^c": r"\textbackslash{}input\{x\} a\textasciitilde{}b\textasciicircum{}c",
        "yarn-4 --x": "yarn-4 -{}-x",
        "≥ 1,024 † 256–512": r"$\geq$ 1,024 \dag{} 256\textendash{}512",
        "\x1b[31m\n": r"\textbackslash{}x1b[31m\textbackslash{}n",  # for a terminal to obey
    }
    assert {text: escape_latex(text) for text in shown} == shown


def test_a_cell_is_a_value_and_its_interval():
    shown = {
        Cell("4.10", "±0.57"): r"4.10 {\scriptsize $\pm$0.57}",
        Cell("4.10", is_best=True): r"\textbf{4.10}",
        Cell(is_best=True): "",
        Cell("e^12.5", "[0.05, e^13.0]"): r"$e^{12.5}$ {\scriptsize [0.05, $e^{13.0}$]}",
        Cell("−0.5"): "$-$0.5",
    }
    assert {cell: latex_cell(cell) for cell in shown} == shown


def test_a_table_is_one_environment_with_booktabs_rules():
    table = Table(
        title="x",
        about="long " * 40,
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


def test_a_half_width_is_shown_unless_the_interval_is_too_wide():
    for nll, low, high, text in (
        (1.0, 0.9, 1.1, "±0.27"),
        (1.247, 1.247, 1.247, "±0.00"),
        (5.0, 4.9, 5.1, "±14.87"),
        (1.247, -10.0, 12.0, "[0.00, e^12.0]"),  # was ±8.1e+04
        (1.0, -3.0, 8.0, "[0.05, 2,980.96]"),
        (1.0, 0.2, 1.7, "±2.13"),
        (1.0, math.nan, math.nan, ""),
        (math.inf, math.nan, math.nan, ""),
        (1000.0, 999.9, 1000.1, "[e^999.9, e^1000.1]"),  # too large for a float
    ):
        assert interval_text(Estimate(nll, low, high)) == text


def test_a_column_has_the_same_decimals_for_values_and_half_widths():
    def column(show, *values, half=0.1):
        cells = loss_cells([Estimate(x, x - half, x + half) for x in values], show)
        return [f"{cell.value} {cell.interval}" for cell in cells]

    assert column("perplexity", math.log(7.1), math.log(741)) == ["7.10 ±0.71", "741.00 ±74.22"]
    assert column("perplexity", math.log(2105.4), 20.0) == ["2,105 ±211", "e^20.0 [e^19.9, e^20.1]"]
    assert column("bits_per_byte", 1.5) == ["1.500 ±0.100"]
    shown = column("above_truncation", 0.25, -0.0125, -0.0004, half=0.01)
    assert shown == ["+0.250 ±0.010", "−0.013 ±0.010", "0.000 ±0.010"]
