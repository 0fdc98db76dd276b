"""Draw what each way of extending the demo gives: the figure of docs/extension.md.

    python scripts/grid.py configs/grids/reference.yaml
    python scripts/plot_reference.py      # from results/reference/ to docs/figures/reference.png

`scripts/generate.py` writes the table of the same figures.
"""

import argparse
import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rope_jax.comparison.groups import without_seed
from rope_jax.plots.saving import write_figure
from rope_jax.plots.style import WIDTHS, ZERO_LINE, figure_style
from rope_jax.sealed import replacing

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/reference"
FIGURE = ROOT / "docs/figures/reference.png"
LENGTHS = (128, 256, 512, 1024, 2048)
TICKS = (-0.04, -0.02, -0.01, 0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
# The columns of costs are those of the model at this multiple of the window.
SHOWN_FACTOR = 4


class Way(NamedTuple):
    """One way to extend the demo."""

    kind: str
    name: str
    run: str
    """The runs' name without their seeds; {factor} if there is one for each factor."""
    curve: str
    """The name of the curve in their sweeps."""
    fit: str = ""
    """The fit that made the strategy; "": none did."""
    truncated: bool = False
    """Whether it reads only the last 128 tokens, at any length."""


WAYS = (
    Way("zero-shot", "no scaling", "demo", "trained"),
    Way("zero-shot", "PI", "demo", "pi-auto"),
    Way("zero-shot", "NTK-aware by 16", "demo", "ntk-16"),
    Way("zero-shot", "dynamic NTK", "demo", "dynamic_ntk"),
    Way("zero-shot", "YaRN", "demo", "yarn-auto"),
    Way("zero-shot", "StreamingLLM", "demo", "streaming"),
    Way("zero-shot", "leaky ReRoPE, logn", "demo", "leaky_rerope-logn"),
    Way("zero-shot", "ReRoPE, logn", "demo", "rerope-logn"),
    Way("fitted", "far keys, at 512", "demo", "far-x4", "far-x4"),
    Way("fitted", "far keys, at 256 to 2,048", "demo", "far-all", "far-all"),
    Way("120 steps", "at 128, truncated", "extend-none-x1-120", "trained", truncated=True),
    Way("120 steps", "no scaling", "extend-none-x{factor}-120", "trained"),
    Way("120 steps", "YaRN", "extend-yarn-x{factor}-120", "trained"),
    Way("500 steps", "at 128, truncated", "extend-long-none-x1-500", "trained", truncated=True),
    Way("500 steps", "YaRN", "extend-long-yarn-x{factor}-500", "trained"),
    Way("1,000 steps", "at that length from the start", "ceiling-x{factor}", "trained"),
)
# By run and curve: the colour (Okabe and Ito's), marker and dashes of the ways that are drawn.
STYLES = {
    ("demo", "trained"): ("#999999", "o", "--"),
    ("demo", "yarn-auto"): ("#E69F00", "s", "--"),
    ("demo", "rerope-logn"): ("#0072B2", "P", "--"),
    ("demo", "far-x4"): ("#56B4E9", "<", "-"),
    ("demo", "far-all"): ("#0072B2", ">", "-"),
    ("extend-none-x1-120", "trained"): ("#CC79A7", "", ":"),
    ("extend-yarn-x{factor}-120", "trained"): ("#D55E00", "^", "-"),
    ("extend-long-none-x1-500", "trained"): ("#000000", "", ":"),
    ("extend-long-yarn-x{factor}-500", "trained"): ("#000000", "v", "-"),
    ("ceiling-x{factor}", "trained"): ("#009E73", "D", "-"),
}


class Above(NamedTuple):
    """Nats per token above truncation, with the 95% interval."""

    value: float
    low: float
    high: float


class Cost(NamedTuple):
    """The mean over seeds of what a way took."""

    numbers: int
    tokens: int
    seconds: float


def read_losses(way: Way) -> dict[int, Above]:
    """Return the losses of a way by length; a model for another length counts only at the window.

    A model that was trained at one length is shown at the window and at that length.
    """
    found = {}
    with (RESULTS / "comparison.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            length = int(row["length"])
            factor = SHOWN_FACTOR if length == LENGTHS[0] else length // LENGTHS[0]
            run = way.run.format(factor=factor)
            names = {without_seed(name) for name in row["runs"].split()}
            if names == {run} and row["name"] == way.curve and row["protocol"] == "same_tokens":
                numbers = (row["above_truncation" + end] for end in ("", "_low", "_high"))
                found[length] = Above(*map(float, numbers))
    if way.truncated and found:
        return dict.fromkeys(LENGTHS, found[LENGTHS[0]])
    return found


def read_cost(way: Way) -> Cost | None:
    """Return what a way took at SHOWN_FACTOR; None if nothing was trained for it.

    KeyError: costs.csv has no such run.
    """
    if way.run == "demo" and not way.fit:
        return None
    run = way.run.format(factor=SHOWN_FACTOR)
    with (RESULTS / "costs.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (without_seed(row["run"]), row["fit"]) == (run, way.fit)
        ]
    if not rows:
        raise KeyError(f"{RESULTS / 'costs.csv'} has no {run} {way.fit}")
    seconds = [float(row["seconds"]) for row in rows]
    return Cost(int(rows[0]["numbers"]), int(rows[0]["tokens"]), math.fsum(seconds) / len(rows))


def measured_ways() -> Iterator[tuple[Way, Mapping[int, Above]]]:
    """Yield the ways that the results have, in the order of WAYS."""
    for way in WAYS:
        if losses := read_losses(way):
            yield way, losses


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    with figure_style():
        figure = draw_reference()
    with replacing(FIGURE) as temporary:
        write_figure(figure, temporary)


def draw_reference() -> Figure:
    """Draw the ways in STYLES, relative to truncation."""
    figure = Figure(figsize=(WIDTHS["page"], 4.2), layout="constrained")
    axis = figure.subplots()
    axis.axhline(0, **ZERO_LINE)
    for way, losses in measured_ways():
        if (way.run, way.curve) not in STYLES:
            continue
        color, marker, dash = STYLES[way.run, way.curve]
        # that of the model for SHOWN_FACTOR would not belong to the others
        lengths = [n for n in sorted(losses) if n > LENGTHS[0] or "{factor}" not in way.run]
        label = f"{way.kind}: {way.name}"
        values = [losses[n].value for n in lengths]
        axis.plot(lengths, values, color=color, marker=marker, linestyle=dash, label=label)
        low, high = ([losses[n][end] for n in lengths] for end in (1, 2))
        axis.fill_between(lengths, low, high, color=color, alpha=0.15, linewidth=0)
        if len(lengths) == 1:  # a band needs two
            axis.vlines(lengths, low, high, color=color, linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_xticks(LENGTHS, [f"{n:,}" for n in LENGTHS])
    axis.set_yscale("symlog", linthresh=0.02, linscale=1.5)
    axis.set_yticks(TICKS, [f"{tick:+g}" if tick else "truncation" for tick in TICKS])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("context length, tokens (trained window: 128)")
    axis.set_ylabel("nats per token above truncation")
    axis.grid(True)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


if __name__ == "__main__":
    main()
