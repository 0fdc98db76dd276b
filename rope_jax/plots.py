"""Figures of sweeps."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

if TYPE_CHECKING:  # it brings in jax, which figures of frequencies do without
    from rope_jax.evaluation.results import Row


# A name with two dollar signs is no formula.
plt.rcParams["text.parse_math"] = False


class Drawn(Protocol):
    """A figure on a curve: a row of results.csv, or several seeds'."""

    @property
    def protocol(self) -> str: ...
    @property
    def last_position(self) -> int: ...
    @property
    def nll(self) -> float: ...
    @property
    def ci_low(self) -> float: ...
    @property
    def ci_high(self) -> float: ...
    @property
    def bpb(self) -> float | None: ...


# Okabe and Ito's colours, then Tol's: told apart by colour-blind readers too. One a scaling type; a
# dynamic one has its family's, and another marker.
_COLOURS = {
    "trained": "#000000",
    "none": "#999999",
    "pi": "#E69F00",
    "dynamic_pi": "#E69F00",
    "ntk": "#0072B2",
    "dynamic_ntk": "#0072B2",
    "mixed_base": "#56B4E9",
    "abf": "#332288",
    "yarn": "#D55E00",
    "dynamic_yarn": "#D55E00",
    "ntk_by_parts": "#882255",
    "llama3": "#009E73",
    "longrope": "#CC79A7",
    "p_rope": "#117733",
    "cope": "#DDCC77",
    "drope": "#AA4499",
    "explicit": "#44AA99",
    "resonance": "#661100",
}
# Types that are not named here take these in turn.
_MORE_COLOURS = ("#999933", "#F0E442", "#888888", "#6699CC")
# More bands than these would hide one another.
_MOST_BANDS = 6
BAND = 0.15
_MOST_COLUMNS = 3
MARKERS = "os^Dv<>P"
_TITLES = {
    "same_tokens": "the same tokens at every length",
    "whole_window": "every token of the window",
    "sliding": "sliding windows, new tokens",
    "per_position": "by position in the window",
    "yarn_compat": "sliding windows, mean of their means",
}


def curve(
    path: Path, rows: Sequence["Row"], *, window: int, truncation: float | None, title: str
) -> None:
    """Perplexity over context length, log-log: a panel a protocol, a line a scaling.

    rows: as in results.csv; window: marked; truncation: NLL at the window, what dropping all
    earlier text gives at any length.
    """
    names = list(dict.fromkeys(row.name for row in rows))
    styles = _styles(rows)
    marks = [] if truncation is None else [truncation]
    figure, axes = panels(rows, windows=[window], truncation=marks, lines_of_legend=len(names))
    for protocol, axis in axes.items():
        for name in names:
            own = [row for row in rows if (row.protocol, row.name) == (protocol, name)]
            draw_line(axis, name, styles[name], own, band=BAND * (len(names) <= _MOST_BANDS))
    figure.suptitle(title, fontsize=11)
    handles, labels = next(iter(axes.values())).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    save(figure, path)


def panels(
    rows: Sequence[Drawn],
    *,
    windows: Iterable[int],
    truncation: Sequence[float],
    lines_of_legend: int,
) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a panel for each protocol of the rows, room for a legend, and no lines yet.

    windows, truncation: marked; truncation in nats, in the panel of same_tokens alone.
    """
    protocols = list(dict.fromkeys(row.protocol for row in rows))
    columns = min(len(protocols), _MOST_COLUMNS)
    lines = -(-len(protocols) // columns)
    height = max(4.8, 1 + 0.24 * lines_of_legend) if lines == 1 else 4.2 * lines
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(1.5 + 5.2 * columns, height),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    limits = _limits(rows, truncation)
    axes = dict(zip(protocols, grid.ravel(), strict=False))
    for axis in grid.ravel()[len(axes) :]:
        axis.set_visible(False)
    for protocol, axis in axes.items():
        axis.set_title(_TITLES[protocol], fontsize=10)
        axis.set_xlabel(_x_label(protocol))
        if axis in grid[:, 0]:
            axis.set_ylabel("perplexity")
        lengths = sorted({row.last_position for row in rows if row.protocol == protocol})
        _set_scales(axis, lengths, limits)
        for window in windows:
            _mark_window(axis, window)
        if protocol == "same_tokens":
            _mark_truncation(axis, truncation)
        if axis in grid[:, -1] or protocol == protocols[-1]:
            _bits_per_byte_axis(axis, rows)
    return figure, axes


def formation(path: Path, rows: Sequence["Row"], *, windows: Iterable[int], title: str) -> None:
    """How curves form in training: a line a checkpoint, dark to light; a panel a scaling.

    rows: as in results.csv, of several steps; a row of panels a protocol; windows: marked.
    """
    names = list(dict.fromkeys(row.name for row in rows))
    protocols = list(dict.fromkeys(row.protocol for row in rows))
    steps = sorted({row.step for row in rows})
    figure, grid = plt.subplots(
        len(protocols),
        len(names),
        figsize=(1.5 + 3.4 * len(names), 0.8 + 3.4 * len(protocols)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(steps)))
    limits = _limits(rows, [])
    for line, protocol in zip(grid, protocols, strict=True):
        for axis, name in zip(line, names, strict=True):
            shown = [row for row in rows if (row.protocol, row.name) == (protocol, name)]
            for step, shade in zip(steps, shades, strict=True):
                own = [row for row in shown if row.step == step]
                style = {"color": shade, "marker": "o", "lw": 1.2}
                draw_line(axis, f"step {step:,}", style, own, band=0)
            _set_scales(axis, sorted({row.last_position for row in shown}), limits)
            axis.tick_params(axis="x", rotation=45)
            for window in windows:
                _mark_window(axis, window)
            axis.set_title(name if len(protocols) == 1 else f"{name}, {protocol}", fontsize=10)
            axis.set_xlabel(_x_label(protocol))
        line[0].set_ylabel("perplexity")
    figure.suptitle(title, fontsize=11)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary, dpi=150)
    plt.close(figure)
    temporary.replace(path)


def _x_label(protocol: str) -> str:
    return "position" if protocol == "per_position" else "context length (tokens)"


def colours(kinds: Iterable[str]) -> dict[str, str]:
    """By kind of curve, a scaling's type or "trained"; the same in every figure where named."""
    unnamed = [kind for kind in dict.fromkeys(kinds) if kind not in _COLOURS]
    more = {kind: _MORE_COLOURS[i % len(_MORE_COLOURS)] for i, kind in enumerate(unnamed)}
    return _COLOURS | more


def _styles(rows: Sequence["Row"]) -> dict[str, dict[str, Any]]:
    """By curve: colour by type, dashes for a fixed factor, a marker for each of one colour."""
    last = {row.name: row for row in rows}
    kinds = {name: name if name == "trained" else row.scaling for name, row in last.items()}
    by_kind = colours(kinds.values())
    seen: dict[str, int] = {}
    styles = {}
    for name, kind in kinds.items():
        colour = by_kind[kind]
        nth = seen[colour] = seen.get(colour, -1) + 1
        fixed = (last[name].factor or 1) > 1 and not last[name].auto and kind != "trained"
        styles[name] = {
            "color": colour,
            "linestyle": "--" if fixed else "-",
            "marker": MARKERS[nth % len(MARKERS)],
        }
    return styles


def draw_line(
    axis: Axes, name: str, style: dict[str, Any], rows: Sequence[Drawn], band: float
) -> None:
    """A curve; band: how opaque its interval is."""
    if not rows:
        return
    x = [row.last_position for row in rows]
    drawn = _perplexity(rows)
    middle, low, high = np.where(
        np.isfinite(drawn), drawn, np.nan
    )  # a gap; inf makes matplotlib warn
    axis.plot(x, middle, ms=3.5, label=name, **style)
    if band:
        axis.fill_between(x, low, high, color=style["color"], alpha=band, linewidth=0)


def _perplexity(rows: Sequence[Drawn]) -> np.ndarray:
    """[3, rows]: perplexity and the ends of its interval; inf where it is too large to say."""
    nll = np.array([(row.nll, row.ci_low, row.ci_high) for row in rows]).T
    with np.errstate(over="ignore"):
        return np.exp(nll)


def _limits(rows: Sequence[Drawn], truncation: Sequence[float]) -> tuple[float, float]:
    """The same for all panels; what is infinite leaves the page and takes nothing along."""
    values = np.append(_perplexity(rows), np.exp(truncation))
    finite = values[np.isfinite(values)]
    return (finite.min() / 1.08, finite.max() * 1.15) if finite.size else (1.0, 10.0)


def _set_scales(axis: Axes, lengths: Sequence[int], limits: tuple[float, float]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
    low, high = limits
    axis.set_ylim(low, high)
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    # a tick a decade where there are many, else enough to read a value off
    steps = np.array([1, 1.5, 2, 3, 4, 5, 7]) if decades.size < 4 else np.array([1])
    ticks = np.multiply.outer(decades, steps).ravel()
    axis.set_yticks(ticks[(ticks >= low) & (ticks <= high)])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.grid(True, which="major", color="0.92")
    axis.spines[["top", "right"]].set_visible(False)


def _bits_per_byte_axis(axis: Axes, rows: Sequence[Drawn]) -> None:
    """The same height in bits a byte, on the right, where it is known."""
    ratios = [row.nll / row.bpb for row in rows if row.bpb and math.isfinite(row.bpb)]
    if not ratios:
        return
    nats = ratios[0]  # of one bit a byte

    def bits(perplexity: Any) -> Any:
        return np.log(np.maximum(perplexity, 1e-9)) / nats

    def perplexity(bits_a_byte: Any) -> Any:  # matplotlib also asks for what is far off the page
        return np.exp(np.clip(np.multiply(bits_a_byte, nats), -700, 700))

    right = axis.secondary_yaxis("right", functions=(bits, perplexity))
    low, high = bits(axis.get_ylim())
    ticks = MaxNLocator(6).tick_values(low, high)
    right.set_yticks([tick for tick in ticks if low <= tick <= high])
    right.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    right.yaxis.set_minor_locator(NullLocator())
    right.set_ylabel("bits a byte", fontsize=9, color="0.35")
    right.tick_params(labelsize=8, colors="0.35")
    right.spines["right"].set_visible(False)


def _mark_window(axis: Axes, window: int) -> None:
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


def _mark_truncation(axis: Axes, nlls: Sequence[float]) -> None:
    """A line each; in words once for those that lie on one another."""
    said: list[float] = []
    for nll in nlls:
        axis.axhline(np.exp(nll), color="0.45", linestyle=":", linewidth=1.2)
        if any(abs(nll - other) < 0.1 for other in said):
            continue
        said.append(nll)
        axis.annotate(
            "truncation to the window",
            (0.99, np.exp(nll)),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
            color="0.35",
        )
