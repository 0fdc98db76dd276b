"""results.md and results.tex list the newest checkpoint's values, intervals and usable lengths."""

import re

import pytest

from rope_jax.comparison.curves import compare_checkpoints
from rope_jax.config.presentation import Presentation
from rope_jax.report.comparison import results_texts
from rope_jax.results.statistics import UsableLength
from rope_jax.results.tasks import NO_TASKS
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
        "trained": ["2.72 ±0.27", "20.09 ±2.0"],
        "yarn_a-4": ["2.72 ±0.27", "**4.48** ±0.45"],
        "pi": ["3.49 ±0.35", "7.39 ±0.74"],
        "truncation": ["2.72", "2.72"],
    },
    "nats": {
        "trained": ["1.000 ±0.10", "3.000 ±0.10"],
        "yarn_a-4": ["1.000 ±0.10", "**1.500** ±0.10"],
        "pi": ["1.250 ±0.10", "2.000 ±0.10"],
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
    return results_texts(comparison, CHECKPOINT, NO_TASKS)


@pytest.mark.parametrize("show", SHOWN)
def test_markdown_and_latex_list_values_with_intervals(show):
    text, latex = texts(show)
    assert text.startswith("# demo, step 500\n\n## `same_tokens`\n\n")
    table = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    heading, rule, *lines = ([cell.strip() for cell in line] for line in table)
    assert heading == ["scaling", "16", "32", "usable"]
    assert rule == ["---", "---:", "---:", "---:"]
    assert {name: values for name, *values, _ in lines} == SHOWN[show]
    assert [line[-1] for line in lines] == ["≥ 16"] * 3 + [""]
    for said in ("24 documents", "test split", "trained at 16 tokens", "0.02 nats"):
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
    assert "1.250 ±0.10" in text
    text, _ = texts("nats", [r._replace(documents=2, units=12, reliable=False) for r in ROWS])
    assert "test split, 12 blocks of 2 documents." in text
    assert "Blocks are too few for a reliable interval." in text
