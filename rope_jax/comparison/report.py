"""A comparison as a Markdown page of tables, as one tidy CSV, and in the terminal."""

import csv
import io
import math
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rope_jax.comparison.curves import Comparison, Curve, Point
from rope_jax.evaluation.statistics import Estimate, perplexity
from rope_jax.sweeps.terminal import perplexity_text, usable_text

_COLUMNS = (
    *("group", "marked", "runs", "seeds", "name", "scaling", "auto", "step", "window"),
    *("factor", "protocol", "length", "first_position", "last_position", "nll", "ci_low"),
    *("ci_high", "ppl", "bpb", "tokens", "documents", "nll_by_seed"),
    *("difference", "difference_low", "difference_high", "gain", "gain_low", "gain_high"),
    *("from_first", "from_first_low", "from_first_high"),
)


def tidy(comparison: Comparison) -> str:
    """A row a figure, of every checkpoint; differences and gain in nats a token."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for curve in comparison.curves:
        sweeps = curve.group.at(curve.step)
        own = (
            *(curve.group.label, curve.group.marked, " ".join(s.run for s in sweeps)),
            *(" ".join(str(s.seed) for s in sweeps), curve.name, curve.scaling),
            *(curve.auto, curve.step, curve.window),
        )
        for p in curve.points:
            estimates = [value for e in (p.difference, p.gain, p.from_first) for value in _cells(e)]
            figures = (*p[:12], " ".join(map(repr, p.of_seeds)))
            writer.writerow((*own, *figures, *estimates))
    return text.getvalue()


def markdown(comparison: Comparison) -> str:
    """Of each group's newest checkpoint: notes, what was compared, and a table a protocol."""
    curves = [curve for curve in comparison.curves if curve.is_newest]
    parts = [f"# {title(comparison)}\n"]
    parts += [f"> {note}\n" for note in comparison.notes]
    heading, *rows = sources(comparison)
    lines = [heading, ["---"] * len(heading), *rows]
    parts.append("".join(f"| {' | '.join(cells)} |\n" for cells in lines))
    for protocol in dict.fromkeys(point.protocol for curve in curves for point in curve.points):
        parts.append(_of_protocol(protocol, curves))
    parts.append(
        "usable: the longest length up to which the same tokens stay within "
        f"{comparison.tolerance:g} nats of `trained` at the window.\n"
    )
    return "\n".join(parts)


def title(comparison: Comparison) -> str:
    """The groups, or how many there are where they are many."""
    groups = comparison.groups
    if len(groups) > 4:
        return f"{len(groups)} groups of runs"
    return "; ".join(group.label for group in groups)


def sources(comparison: Comparison) -> list[list[str]]:
    """A heading, and a row a group: what was compared."""
    lines = [["group", "runs (seed)", "steps", "window", "sweep", "corpus"]]
    for group in comparison.groups:
        steps = sorted({step for sweep in group.sweeps for step in sweep.windows})
        windows = dict.fromkeys(sweep.windows[s] for s in steps for sweep in group.at(s))
        corpora = {row.corpus for sweep in group.sweeps for row in sweep.rows}
        columns = (
            [f"{sweep.run} ({sweep.seed})" for sweep in group.sweeps],
            map(str, steps),
            map(str, windows),
            dict.fromkeys(sweep.name for sweep in group.sweeps),
            sorted(corpora),
        )
        lines.append([group.label, *map(", ".join, columns)])
    return lines


def usable(curve: Curve) -> str:
    """Its usable length, for the reader; nothing where it was not measured."""
    return "" if curve.usable is None else usable_text(*curve.usable)


def _of_protocol(protocol: str, curves: Sequence[Curve]) -> str:
    shown = [(c, {p.length: p for p in c.points if p.protocol == protocol}) for c in curves]
    shown = [(curve, points) for curve, points in shown if points]
    counts = [p.documents for _, points in shown for p in points.values()]
    documents = "–".join(dict.fromkeys(map(str, (min(counts), max(counts)))))
    parts = [f"## `{protocol}`, {documents} documents\n"]
    parts.append(
        "Perplexity ± half of the 95% interval over documents and seeds. Where a group has one "
        "seed, it says nothing of others.\n"
    )
    parts.append(_grid(shown, _perplexity, with_usable=protocol == "same_tokens"))
    for about, pick in (
        ("Difference from `trained` at the same length, nats a token, paired.", _difference),
        ("Difference from the same scaling in the first runs, nats a token, paired.", _from_first),
        ("Gain over truncation to the window, nats a token, paired.", _gain),
    ):
        some = [(curve, points) for curve, points in shown if any(map(pick, points.values()))]
        if some:
            parts += [about + "\n", _grid(some, pick, with_usable=False)]
    return "\n".join(parts)


def _grid(
    shown: Sequence[tuple[Curve, dict[int, Point]]],
    pick: Callable[[Point], str],
    *,
    with_usable: bool,
) -> str:
    lengths = sorted({length for _, points in shown for length in points})
    with_usable = with_usable and any(curve.usable for curve, _ in shown)
    heading = ["runs", "scaling", *(f"{n:,}" for n in lengths), *["usable"] * with_usable]
    lines = [f"| {' | '.join(heading)} |", "|---|---" + "|---:" * (len(heading) - 2) + "|"]
    for curve, points in shown:
        cells = [pick(points[n]) if n in points else "" for n in lengths]
        cells += [usable(curve)] * with_usable
        lines.append(f"| {' | '.join((curve.group.label, curve.name, *cells))} |")
    return "\n".join(lines) + "\n"


def _perplexity(point: Point) -> str:
    half = (perplexity(point.ci_high) - perplexity(point.ci_low)) / 2
    return perplexity_text(point.nll) + (f" ± {half:.2f}" if math.isfinite(half) else "")


def _difference(point: Point) -> str:
    return _nats(point.difference)


def _from_first(point: Point) -> str:
    return _nats(point.from_first)


def _gain(point: Point) -> str:
    return _nats(point.gain)


def _nats(estimate: Estimate | None) -> str:
    """With its interval: it need not be symmetric."""
    if estimate is None:
        return ""
    value, low, high = estimate
    if value == low == high == 0:
        return "0"
    interval = f" [{low:+.3f}, {high:+.3f}]" if math.isfinite(low) and math.isfinite(high) else ""
    return f"{value:+.3f}{interval}"


def _cells(estimate: Estimate | None) -> tuple[float | None, ...]:
    return (None, None, None) if estimate is None else tuple(estimate)


def show(console: Console, comparison: Comparison) -> None:
    """Notes and the first protocol's perplexities, in the terminal."""
    curves = [curve for curve in comparison.curves if curve.is_newest]
    protocol = curves[0].points[0].protocol
    shown = [(c, {p.length: p for p in c.points if p.protocol == protocol}) for c in curves]
    lengths = sorted({length for _, points in shown for length in points})
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"perplexity, {protocol}: ± half of the 95% interval over documents and seeds",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("runs")
    table.add_column("scaling", no_wrap=True)
    for length in lengths:
        table.add_column(f"{length}", justify="right")
    before = None
    for curve, points in shown:
        cells = [
            _perplexity(points[n]).replace(" ± ", "\n±") if n in points else "" for n in lengths
        ]
        name = "" if curve.group is before else curve.group.label
        table.add_row(escape(name), curve.name, *cells)
        before = curve.group
    console.print(table)
    for note in comparison.notes:
        console.print(note, style="yellow", markup=False)
