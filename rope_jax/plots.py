"""Figures of sweeps."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from rope_jax.evaluation.results import Row

# Okabe and Ito's colours: told apart by colour-blind readers too. One a scaling type, always.
_COLOURS = {
    "trained": "#000000",
    "none": "#000000",
    "pi": "#E69F00",
    "ntk": "#0072B2",
    "yarn": "#D55E00",
}
_TITLES = {
    "same_tokens": "the same tokens at every length",
    "whole_window": "every token of the window",
    "per_position": "by position in the longest window",
}


def curve(
    path: Path, rows: Sequence[Row], *, window: int, truncation: float | None, title: str
) -> None:
    """Perplexity over context length, log-log: a panel a protocol, a line a scaling.

    rows: as in results.csv; window: marked; truncation: NLL at the window, what dropping all
    earlier text gives at any length.
    """
    panels = list(dict.fromkeys(row.protocol for row in rows))
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(1.5 + 5.2 * len(panels), 4.8),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    names = list(dict.fromkeys(row.name for row in rows))
    for axis, protocol in zip(axes[0], panels, strict=True):
        for name in names:
            mine = [row for row in rows if row.name == name and row.protocol == protocol]
            _line(axis, name, mine)
        _frame(axis, [row for row in rows if row.protocol == protocol], window)
        axis.set_title(_TITLES[protocol], fontsize=10)
        if truncation is not None and protocol == "same_tokens":
            axis.axhline(np.exp(truncation), color="0.45", linestyle=":", linewidth=1.2)
            axis.annotate(
                "truncation to the window",
                (0.99, np.exp(truncation)),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=8,
                color="0.35",
                xytext=(0, 2),
                textcoords="offset points",
            )
    axes[0][0].set_ylabel("perplexity")
    figure.suptitle(title, fontsize=11)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=150)
    plt.close(figure)
    temporary.replace(path)


def _line(axis: Axes, name: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    x = [row.last_position for row in rows]
    colour = _COLOURS["trained" if name == "trained" else rows[-1].scaling]
    style = "--" if rows[-1].factor is not None and not rows[-1].auto else "-"
    axis.plot(x, [row.ppl for row in rows], style, color=colour, marker="o", ms=3.5, label=name)
    low, high = ([getattr(row, end) for row in rows] for end in ("ci_low", "ci_high"))
    axis.fill_between(x, np.exp(low), np.exp(high), color=colour, alpha=0.15, linewidth=0)


def _frame(axis: Axes, rows: Sequence[Row], window: int) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    lengths = sorted({row.last_position for row in rows})
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
    axis.minorticks_off()
    ends = np.exp([(row.nll, row.ci_low, row.ci_high) for row in rows])
    finite = ends[np.isfinite(ends)]
    if finite.size:
        low, high = finite.min() / 1.08, finite.max() * 1.15
        axis.set_ylim(low, high)
        steps = np.array([1, 1.5, 2, 3, 4, 5, 7])
        ticks = np.concatenate([steps * 10.0**e for e in range(-1, 9)])
        axis.set_yticks(ticks[(ticks >= low) & (ticks <= high)])
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("position" if rows[0].protocol == "per_position" else "context length (tokens)")
    axis.axvline(window, color="0.6", linewidth=1)
    axis.annotate(
        "window",
        (window, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, -10),
        textcoords="offset points",
        fontsize=8,
        color="0.35",
    )
    axis.grid(True, which="major", color="0.92")
    axis.spines[["top", "right"]].set_visible(False)
