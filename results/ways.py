"""Draw what each way of extending a model gives: smollm2, copying and reference in docs/figures/.

    python results/ways.py      # from the folders of these names in results/

`scripts/generate.py` writes the tables of the same figures.
"""

import argparse
import csv
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import scipy.stats
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rope_jax.comparison.groups import without_seed
from rope_jax.plots.panels import add_legend, mark_windows, scale_lengths, scale_nats
from rope_jax.plots.saving import write_figure
from rope_jax.plots.style import (
    MARKERS,
    NOTE,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTHS,
    ZERO_LINE,
    LineStyle,
    assign_styles,
    figure_style,
)
from rope_jax.protocols.base import RELIABLE_UNITS
from rope_jax.results.statistics import Sums, paired_difference
from rope_jax.sealed import replacing

HERE = Path(__file__).parent
ZERO_SHOT = "zero-shot"


class Way(NamedTuple):
    """One way to extend a model."""

    kind: str
    name: str
    run: str
    """The runs' name without their seeds; {factor} if there is one for each factor."""
    curve: str = "trained"
    """The name of the curve in their sweeps."""
    fit: str = ""
    """The fit that made the strategy; "": none did."""
    shown: bool = False
    """Whether it is drawn, or in the short table."""
    truncated: bool = False
    """Whether it reads only the last tokens that fill the window, at any length."""


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


class Experiment(NamedTuple):
    """Ways to extend one model, whose results are in `results/<name>/`."""

    name: str
    window: int
    lengths: tuple[int, ...]
    ways: tuple[Way, ...]
    decimals: int = 3
    """Of nats in tables."""
    shown_factor: int = 1
    """The columns of costs are those of the model at this multiple of the window."""

    @property
    def figure(self) -> Path:
        return HERE.parent / f"docs/figures/{self.name}.png"

    @property
    def folder(self) -> Path:
        return HERE / self.name

    def measured(
        self, ways: Iterable[Way] | None = None, comparison: str = "comparison.csv"
    ) -> Iterator[tuple[Way, Mapping[int, Above]]]:
        """Yield ways, all by default, with their losses by length in a file of the results.

        KeyError: the file has no losses of a way.
        """
        for way in self.ways if ways is None else ways:
            yield way, self._losses(way, self.folder / comparison)

    def _losses(self, way: Way, path: Path) -> dict[int, Above]:
        """Return a way's losses. A model for one length is shown at that length and the window."""
        losses = {
            length: Above(*(float(row["above_truncation" + end]) for end in ("", "_low", "_high")))
            for length, row in self.rows(way, path).items()
        }
        if way.truncated:
            lengths = (length for length in self.lengths if length >= self.window)
            return dict.fromkeys(lengths, losses[self.window])
        return losses

    def rows(self, way: Way, path: Path) -> dict[int, dict[str, str]]:
        """Return a way's rows of a comparison, by length."""
        found = {}
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                length = int(row["length"])
                factor = self.shown_factor if length == self.window else length // self.window
                names = {without_seed(name) for name in row["runs"].split()}
                wanted = (way.run.format(factor=factor), way.curve, "same_tokens")
                if (*names, row["name"], row["protocol"]) == wanted:
                    found[length] = row
        if not found:
            raise KeyError(f"{path} has no {way.run} {way.curve}")
        return found

    def styles(self) -> dict[Way, LineStyle]:
        """Return the styles of what is drawn: its scaling's, and wider the more it was trained."""
        shown, kinds = [way for way in self.ways if way.shown], {}
        for way in shown:
            *_, row = self.rows(way, self.folder / "comparison.csv").values()
            kinds[way] = row["map"].partition("+")[0] or row["scaling"]
            if (way.kind, way.curve) == (ZERO_SHOT, "trained"):
                kinds[way] = "trained"
        looks = assign_styles({kind: kind for kind in kinds.values()})
        widths = {
            kind: 1.0 + 0.45 * n for n, kind in enumerate(dict.fromkeys(w.kind for w in shown))
        }
        styles = {
            way: replace(looks[kinds[way]], marker=marker, linewidth=widths[way.kind])
            for way, marker in zip(shown, itertools.cycle(MARKERS), strict=False)
        }
        for way in filter(lambda way: way.truncated, shown):
            styles[way] = replace(styles[way], marker="", linestyle=":")
        return styles

    def cost(self, way: Way) -> Cost | None:
        """Return what a way took at `shown_factor`; None if nothing was trained for it.

        KeyError: costs.csv has no such run.
        """
        if way.kind == ZERO_SHOT:
            return None
        run = way.run.format(factor=self.shown_factor)
        with (self.folder / "costs.csv").open(newline="", encoding="utf-8") as file:
            rows = [
                row
                for row in csv.DictReader(file)
                if (without_seed(row["run"]), row["fit"]) == (run, way.fit)
            ]
        if not rows:
            raise KeyError(f"{self.folder / 'costs.csv'} has no {run} {way.fit}")
        seconds = [float(row["seconds"]) for row in rows]
        return Cost(int(rows[0]["numbers"]), int(rows[0]["tokens"]), math.fsum(seconds) / len(rows))


REFERENCE = Experiment(
    "reference",
    window=128,
    lengths=(128, 256, 512, 1024, 2048),
    ways=(
        Way(ZERO_SHOT, "no scaling", "demo", shown=True),
        Way(ZERO_SHOT, "YaRN", "demo", "yarn-auto", shown=True),
        Way(ZERO_SHOT, "ReRoPE, logn", "demo", "rerope-logn", shown=True),
        Way("fitted", "far keys, at 512", "demo", "far-x4", "far-x4", shown=True),
        Way("fitted", "far keys, at 256 to 2,048", "demo", "far-all", "far-all", shown=True),
        Way("120 steps", "at 128, truncated", "extend-none-x1-120", shown=True, truncated=True),
        Way("120 steps", "no scaling", "extend-none-x{factor}-120"),
        Way("120 steps", "YaRN", "extend-yarn-x{factor}-120", shown=True),
        Way(
            "500 steps", "at 128, truncated", "extend-long-none-x1-500", shown=True, truncated=True
        ),
        Way("500 steps", "YaRN", "extend-long-yarn-x{factor}-500", shown=True),
        Way("1,000 steps", "at that length from the start", "ceiling-x{factor}", shown=True),
    ),
    decimals=4,
    shown_factor=4,
)
COPYING = Experiment(
    "copying",
    window=128,
    lengths=(128, 256, 512, 1024, 2048),
    ways=(
        Way(ZERO_SHOT, "no scaling", "copying", shown=True),
        Way(ZERO_SHOT, "PI", "copying", "pi-auto"),
        Way(ZERO_SHOT, "NTK-aware by 16", "copying", "ntk-16"),
        Way(ZERO_SHOT, "YaRN", "copying", "yarn-auto", shown=True),
        Way(ZERO_SHOT, "ReRoPE, logn", "copying", "rerope-logn", shown=True),
        Way(ZERO_SHOT, "leaky ReRoPE, logn", "copying", "leaky_rerope-logn"),
        Way("300 steps", "at 128, truncated", "copying-more-x1", shown=True, truncated=True),
        Way("300 steps", "YaRN, at 512", "copying-yarn-x4", shown=True),
        Way("from the start", "at 512", "copying-long-x4", shown=True),
    ),
)
SMOLLM2 = Experiment(
    "smollm2",
    window=8192,
    lengths=(2048, 4096, 8192, 12288, 16384, 32768),
    ways=(
        Way(ZERO_SHOT, "no scaling", "smollm2", shown=True),
        Way(ZERO_SHOT, "PI", "smollm2", "pi-auto", shown=True),
        Way(ZERO_SHOT, "PI by 4", "smollm2", "pi-4"),
        Way(ZERO_SHOT, "dynamic NTK", "smollm2", "dynamic_ntk", shown=True),
        Way(ZERO_SHOT, "NTK-aware by 4", "smollm2", "ntk-4"),
        Way(ZERO_SHOT, "NTK-aware by 8", "smollm2", "ntk-8"),
        Way(ZERO_SHOT, "base 500,000", "smollm2", "base-500k"),
        Way(ZERO_SHOT, "llama3", "smollm2", "llama3-auto"),
        Way(ZERO_SHOT, "YaRN", "smollm2", "yarn-auto", shown=True),
        Way(ZERO_SHOT, "YaRN by 4", "smollm2", "yarn-4"),
        Way(ZERO_SHOT, "YaRN, logn", "smollm2", "yarn-auto-logn"),
        Way(ZERO_SHOT, "ReRoPE", "smollm2", "rerope"),
        Way(ZERO_SHOT, "ReRoPE, logn", "smollm2", "rerope-logn"),
        Way(ZERO_SHOT, "leaky ReRoPE", "smollm2", "leaky_rerope", shown=True),
        Way(ZERO_SHOT, "leaky ReRoPE, logn", "smollm2", "leaky_rerope-logn"),
        Way(ZERO_SHOT, "Self-Extend", "smollm2", "self_extend", shown=True),
        Way(ZERO_SHOT, "dual chunk attention", "smollm2", "dual_chunk"),
        Way(ZERO_SHOT, "STRING", "smollm2", "string"),
        Way(ZERO_SHOT, "StreamingLLM", "smollm2", "streaming", shown=True),
        Way("100 steps", "at 8,192, truncated", "smollm2-short", truncated=True),
        Way("100 steps", "PI by 2", "smollm2-pi", shown=True),
        Way("100 steps", "NTK-aware by 2", "smollm2-ntk"),
        Way("100 steps", "base 500,000", "smollm2-abf", shown=True),
        Way("100 steps", "YaRN by 2", "smollm2-yarn", shown=True),
    ),
)
# Names of strategies in SmolLM2's documents.csv, and what they are called.
SMOLLM2_CURVES = {way.curve: way.name for way in SMOLLM2.ways if way.kind == ZERO_SHOT} | {
    f"fit-{fit}-s{seed}": f"fitted from {start}, seed {seed}"
    for fit, start in (
        ("yarn", "YaRN"),
        ("far", "leaky ReRoPE, logn"),
        ("far12", "leaky ReRoPE, logn"),
    )
    for seed in (0, 1)
}
SMOLLM2_CURVES |= {
    "fit-score12-s0": "m and query scale fitted from leaky ReRoPE, logn, seed 0",
    "lora12": "LoRA at 12,288 tokens, YaRN by 1.5, seed 0",
    "lora8": "LoRA at 8,192 tokens, seed 0",
}
KINDS = {
    "frequencies": "frequencies",
    "score": "m and query scale",
    "far_phase": "phase of far keys",
    "far_amplitude": "amplitude of far keys",
}
SMOLLM2_CURVES |= {
    f"{part}-{kind}": f"{part} {KINDS[kind]}" for part in ("without", "only") for kind in KINDS
}


class Longer(NamedTuple):
    """A way of reading at the window and beyond it, on the same tokens of the same documents."""

    nll: Mapping[int, float]
    above: Mapping[int, Above]
    """The published model, truncated."""
    farther: Above
    """What the text beyond the window adds to the way's own loss at the window."""
    documents: int


def sums_in(path: Path) -> dict[tuple[str, int], Sums]:
    """Return what a documents.csv has of each name and length, by document."""
    return {
        (str(name), int(n)): Sums(rows["nll"].to_numpy(), rows["weight"].to_numpy())
        for (name, n), rows in pd.read_csv(path).groupby(["name", "length"])
    }


def difference(x: Sums, y: Sums) -> Above:
    """Return the paired difference of two means and its 95% interval.

    Over fewer than 20 documents it is Student's, of documents with the same weight: the ends of a
    bootstrap would depend on its seed.
    """
    if len(x.nll) >= RELIABLE_UNITS:
        return Above(*paired_difference(x, y, resamples=2000, seed=0))
    each = x.nll / x.weight - y.nll / y.weight
    half = float(scipy.stats.t.ppf(0.975, len(each) - 1) * scipy.stats.sem(each))
    return Above(float(each.mean()), float(each.mean()) - half, float(each.mean()) + half)


def apart() -> dict[str, Above]:
    """Return what a fit of far keys loses at 12,288 tokens without one kind of its numbers."""
    sums = {name: x for (name, _), x in sums_in(SMOLLM2.folder / "apart.csv").items()}
    whole, start = sums.pop("fit-far12-s0"), sums.pop("leaky_rerope-logn")
    lost = {
        ("everything except " if part == "only" else "") + KINDS[kind]: sums[name]
        for name in sums
        for part, _, kind in [name.partition("-")]
    }
    return {name: difference(x, whole) for name, x in ({"all of them": start} | lost).items()}


def draw_apart() -> Figure:
    """Draw what the fit loses without each kind of its numbers."""
    lost = dict(sorted(apart().items(), key=lambda item: item[1].value))
    figure = Figure(figsize=(WIDTHS["column"], 1.7), layout="constrained")
    axis = figure.subplots()
    values = [x.value for x in lost.values()]
    ends = [[x.value - x.low for x in lost.values()], [x.high - x.value for x in lost.values()]]
    axis.errorbar(values, range(len(lost)), xerr=ends, fmt="o", capsize=2, color="0.25")
    axis.axvline(0, **ZERO_LINE)
    axis.set_yticks(range(len(lost)), list(lost))
    figure.supxlabel("nats per token lost without them", fontsize=TEXT_SIZE)
    axis.grid(True, axis="x")
    return figure


def longer(
    files: Iterable[Path], window: int, length: int, names: Mapping[str, str] = SMOLLM2_CURVES
) -> dict[str, Longer]:
    """Return the ways that the documents.csv of sweeps measured at `length`, in `names`' order.

    The files are of one machine each, so that only rows of one file are compared.
    """
    found = {}
    for path in files:
        sums = sums_in(path)
        truncated = sums["trained", window]
        for name in {name for name, n in sums if n == length and (name, window) in sums}:
            at_window, beyond = sums[name, window], sums[name, length]
            pairs = (at_window, truncated), (beyond, truncated), (beyond, at_window)
            short, long, farther = (difference(*pair) for pair in pairs)
            nll = {window: float(at_window.mean()), length: float(beyond.mean())}
            above = {window: short, length: long}
            found[name] = Longer(nll, above, farther, documents=len(truncated.nll))
    return {name: found[name] for name in names if name in found}


EXPERIMENTS = (COPYING, REFERENCE)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    drawings: dict[Path, Callable[[], Figure]] = {
        each.figure: functools.partial(draw, each) for each in EXPERIMENTS
    }
    drawings |= {SMOLLM2.figure: functools.partial(draw_smollm2, SMOLLM2)}
    drawings |= {SMOLLM2.figure.with_name("apart.png"): draw_apart}
    for path, drawing in drawings.items():
        with figure_style():
            figure = drawing()
        with replacing(path) as temporary:
            write_figure(figure, temporary)


def draw(experiment: Experiment) -> Figure:
    """Draw the ways that are shown, relative to truncation."""
    figure = Figure(figsize=(WIDTHS["page"], 4.2), layout="constrained")
    axis = figure.subplots()
    axis.axhline(0, **ZERO_LINE)
    styles, ends = experiment.styles(), [0.0]
    for way, losses in experiment.measured(styles):
        look = styles[way]
        # that of the model for `shown_factor` would not belong to the others
        lengths = [
            n
            for n in experiment.lengths
            if n in losses and (n > experiment.window or "{factor}" not in way.run)
        ]
        label = f"{way.kind}: {way.name}"
        axis.plot(lengths, [losses[n].value for n in lengths], label=label, **vars(look))
        beyond = [n for n in lengths if n >= experiment.window]  # before, most ways are one
        low, high = ([losses[n][end] for n in beyond] for end in (1, 2))
        ends += [*low, *high, *(losses[n].value for n in lengths)]
        axis.fill_between(beyond, low, high, color=look.color, alpha=0.15, linewidth=0)
        if len(beyond) == 1:  # a band needs two
            axis.vlines(beyond, low, high, color=look.color, linewidth=1)
    scale_nats(axis.yaxis, 1.2 * min(ends), 1.2 * max(ends), 3.3, "nats per token above truncation")
    axis.set_xscale("log", base=2)
    axis.set_xticks(experiment.lengths, [f"{n:,}" for n in experiment.lengths])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(f"context length, tokens (trained window: {experiment.window:,})")
    axis.grid(True)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def draw_smollm2(experiment: Experiment) -> Figure:
    """Draw perplexity by length, and nats above truncation from the window on.

    The fits were measured on other tokens of the same novels, see `results/smollm2/twice`.
    """
    figure = Figure(figsize=(WIDTHS["page"], 3.3), layout="constrained")
    perplexity, above = figure.subplots(1, 2)
    window = experiment.window
    drawn = "trained", "pi-auto", "dynamic_ntk", "yarn-auto", "leaky_rerope"
    styles = {way: look for way, look in experiment.styles().items() if way.curve in drawn}
    styles = {way: look for way, look in styles.items() if way.kind == ZERO_SHOT}
    for way, losses in experiment.measured(styles):
        rows, look = experiment.rows(way, experiment.folder / "comparison.csv"), styles[way]
        ppl = [float(row["ppl"]) for row in rows.values()]
        perplexity.plot([*rows], ppl, label=way.name, **vars(look))
        beyond = [n for n in rows if n >= window]
        above.plot(beyond, [losses[n].value for n in beyond], **vars(look))
        bounds = ([losses[n][end] for n in beyond] for end in (1, 2))
        above.fill_between(beyond, *bounds, color=look.color, alpha=0.15, linewidth=0)
    fits = longer((experiment.folder / "twice").glob("*.csv"), window, 2 * window)
    look, label = assign_styles({"fit": "fitted"})["fit"], "far keys fitted, weights frozen"
    for fit in (fit for name, fit in fits.items() if name.startswith("fit-far")):
        lengths, values = [*fit.nll], [x.value for x in fit.above.values()]
        ends = [[abs(x.value - x[end]) for x in fit.above.values()] for end in (1, 2)]
        above.errorbar(lengths, values, ends, capsize=2, **vars(look))
        above.plot([window, experiment.lengths[-1]], [values[0]] * 2, ":", color=look.color)
        perplexity.plot(lengths, [*map(math.exp, fit.nll.values())], label=label, **vars(look))
        label = ""  # of the other seeds
    above.axhline(0, **ZERO_LINE)
    for text, height in (("truncation", 0.0), ("the fits, truncated", values[0])):
        place: dict[str, Any] = {"xytext": (0, -2), "textcoords": "offset points"}
        where = (experiment.lengths[-1], height)
        above.annotate(text, where, ha="right", va="top", fontsize=SMALL_SIZE, color=NOTE, **place)
    above.set_ylim(-0.1, 0.21)
    above.set_ylabel("nats per token above truncation")
    perplexity.set_yscale("log")
    ticks = [20, 50, 100, 200, 500, 1000, 2000, 5000]
    perplexity.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    perplexity.minorticks_off()
    perplexity.set_ylabel("perplexity (logarithmic)")
    for axis, least in ((perplexity, 0), (above, window)):
        shown = [n for n in experiment.lengths if n >= least]
        scale_lengths(axis, shown, WIDTHS["page"] / 2 - 0.6)
        axis.set_xlabel("context length, tokens")
    mark_windows(perplexity, [window], with_label=True)
    add_legend(figure, perplexity.get_legend_handles_labels()[0])
    return figure


if __name__ == "__main__":
    main()
