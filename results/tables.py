"""Tables of the experiments in this folder, which `make generate` writes into the pages."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from results.ways import (
    REFERENCE,
    SMOLLM2,
    SMOLLM2_CURVES,
    ZERO_SHOT,
    Above,
    Cost,
    Experiment,
    Way,
    apart,
    longer,
)
from rope_jax.comparison.groups import without_seed
from rope_jax.console import signed_text
from rope_jax.protocols.base import RELIABLE_UNITS


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, without columns that have no heading and the same in every row.

    A vertical bar in a cell is not a border.
    """
    rows = list(rows)
    columns = zip(headings, *rows, strict=True)
    kept = [i for i, (name, *cells) in enumerate(columns) if name or len({*cells}) > 1]
    headings, *rows = ([row[i] for i in kept] for row in (headings, *rows))
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def reference_table() -> str:
    """Return a table of what each way of extending the demo gives, and of its cost."""
    rows = [
        (way.kind, way.name, *_cost(REFERENCE.cost(way)), *_cells(REFERENCE, losses))
        for way, losses in REFERENCE.measured()
    ]
    return table(("", "", "numbers", "tokens", "seconds", *_lengths(REFERENCE)), rows)


def ways_table(experiment: Experiment, ways: Iterable[tuple[Way, Mapping[int, Above]]]) -> str:
    """Return a table of what ways of extending a model give."""
    rows = [(way.kind, way.name, *_cells(experiment, losses)) for way, losses in ways]
    return table(("", "", *_lengths(experiment)), rows)


def smollm2_published() -> list[tuple[Way, Mapping[int, Above]]]:
    """Return the ways that SmolLM2 is read as published, with losses above its truncation."""
    return [*SMOLLM2.measured(way for way in SMOLLM2.ways if way.kind == ZERO_SHOT)]


def smollm2_trained() -> list[tuple[Way, Mapping[int, Above]]]:
    """Return the ways that SmolLM2 was trained further, with losses above their control."""
    ways = (way for way in SMOLLM2.ways if way.kind != ZERO_SHOT and not way.truncated)
    marked = (way._replace(kind=f"{way.kind}¹") for way in ways)
    return [*SMOLLM2.measured(marked, "further/comparison.csv")]


def smollm2_in_short() -> str:
    """Return a table of both, of the ways that are shown, with the fits of far keys between."""
    ways = longer((SMOLLM2.folder / "twice").glob("*.csv"), SMOLLM2.window, 2 * SMOLLM2.window)
    fitted = [
        (Way("fitted²", SMOLLM2_CURVES[name].removeprefix("fitted from "), ""), way.above)
        for name, way in ways.items()
        if name.startswith("fit-far")
    ]
    published, trained = (
        [each for each in ways if each[0].shown]
        for ways in (smollm2_published(), smollm2_trained())
    )
    return ways_table(SMOLLM2, published + fitted + trained)


def _lengths(experiment: Experiment) -> tuple[str, ...]:
    return tuple(f"{n:,}" for n in experiment.lengths if n >= experiment.window)


def _cells(experiment: Experiment, losses: Mapping[int, Above]) -> list[str]:
    lengths = (n for n in experiment.lengths if n >= experiment.window)
    return [_above(losses[n], experiment.decimals) if n in losses else "" for n in lengths]


def _above(above: Above, decimals: int, *, is_marked: bool = True) -> str:
    """Return a difference with half of its interval; bold if all of it lies below truncation.

    is_marked: whether it may be bold, which few documents do not allow.
    """
    half = (above.high - above.low) / 2
    text = f"{signed_text(above.value, decimals)} ± {half:.{decimals}f}"
    return f"**{text}**" if is_marked and above.high < 0 else text


def _cost(cost: Cost | None) -> tuple[str, str, str]:
    """Return numbers, tokens and seconds as text."""
    if cost is None:
        return "0", "0", "0"
    return f"{cost.numbers:,}", f"{cost.tokens:,}", f"{cost.seconds:,.0f}"


def longer_table(length: int, window: int = SMOLLM2.window, **files: str) -> str:
    """Return a table of a published model at its window and beyond, and what the far text is worth.

    files: patterns in results/smollm2/, by what the first column says of them.
    """
    rows = []
    for kind, pattern in files.items():
        for name, way in longer(SMOLLM2.folder.glob(pattern), window, length).items():
            cells = (*way.above.values(), way.farther)
            is_marked = way.documents >= RELIABLE_UNITS
            texts = (_above(cell, SMOLLM2.decimals, is_marked=is_marked) for cell in cells)
            rows.append((kind, SMOLLM2_CURVES[name], *texts))
    return table(("", "", f"{window:,}", f"{length:,}", f"{window:,} to {length:,}"), rows)


def apart_table() -> str:
    """Return a table of what the fit of far keys loses without a kind of its numbers."""
    rows = ((name, _above(lost, SMOLLM2.decimals)) for name, lost in apart().items())
    return table(("set back", "lost at 12,288"), rows)


def hybrid_table() -> str:
    """Return a table of the demo without and with delta nets: loss above their own truncation.

    Each cell has the two seeds.
    """
    measured = pd.read_csv(Path(__file__).parent / "hybrid/comparison.csv")
    by_seed = {
        (str(group), str(name), int(length)): [float(x) for x in str(nll).split()]
        for group, name, length, nll in measured[["group", "name", "length", "nll_by_seed"]].values
    }
    models = {"demo (2 seeds)": "attention", "hybrid (2 seeds)": "delta nets"}
    names, lengths = dict.fromkeys(measured["name"]), sorted({*measured["length"]})
    rows = []
    for group, model in models.items():
        own = by_seed[group, "trained", lengths[0]]
        for name in names:
            cells = (zip(by_seed[group, name, n], own, strict=True) for n in lengths)
            above = (" / ".join(signed_text(a - b) for a, b in cell) for cell in cells)
            rows.append((model, name, *above))
    return table(("", "", *(f"{n:,}" for n in lengths)), rows)


def position_table() -> str:
    """Return a table of the loss by position of SmolLM2 trained further, and of its control."""
    measured = pd.read_csv(SMOLLM2.folder / "positions.csv")
    rows = []
    for (first, last), group in measured.groupby(["first_position", "last_position"]):
        nll = group.set_index("run")["nll"]
        own, control = nll["smollm2-yarn-s0"], nll["smollm2-short-s0"]
        rows.append((f"{first:,} to {last:,}", f"{control:.3f}", f"{own:.3f}"))
    return table(("position", "trained at 8,192", "trained at 16,384 with YaRN by 2"), rows)


def retrieval_table() -> str:
    """Return a table of the answers that SmolLM2 finds, by task, scaling, length and depth.

    Rows in which nothing is found are left out.
    """
    measured = pd.read_csv(SMOLLM2.folder / "tasks.csv")
    depths = sorted(measured["depth"].dropna().unique())
    trained = {way.run: f"{way.name}, {way.kind}" for way in SMOLLM2.ways}
    rows = []
    for (task, run, name, length), group in measured.groupby(["task", "run", "name", "length"]):
        exact, nats = (
            group[(group["metric"] == metric) & ~group["taken_out"]].sort_values("depth")
            for metric in ("exact", "nats")
        )
        without = group[(group["metric"] == "nats") & group["taken_out"]]["value"].iloc[0]
        if exact["value"].any():
            cells = {
                depth: f"{100 * share:.0f}% [{100 * low:.0f}, {100 * high:.0f}], {loss:.2f}"
                for depth, share, low, high, loss in zip(
                    *(exact[column] for column in ("depth", "value", "ci_low", "ci_high")),
                    nats["value"],
                    strict=True,
                )
            }
            way = SMOLLM2_CURVES[name] if run == SMOLLM2.name else trained[without_seed(run)]
            shown = (cells.get(depth, "") for depth in depths)
            rows.append((task, way, f"{length:,}", *shown, f"{without:.2f}"))
    return table(("", "", "tokens", *(f"depth {n:g}" for n in depths), "taken out"), rows)
