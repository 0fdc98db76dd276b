"""A sweep in the terminal: one table a protocol, a row a curve, a column a length."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from rope_jax.evaluation.results import Row


def tables(console: Console, rows: Sequence[Row], about: dict[str, Any]) -> None:
    """Print perplexities with the half-width of their 95% interval, and the summary."""
    for protocol in dict.fromkeys(row.protocol for row in rows):
        mine = [row for row in rows if row.protocol == protocol]
        columns = list(dict.fromkeys((row.first_position, row.last_position) for row in mine))
        caption = "tokens of context before the scored ones, at most"
        if protocol == "per_position":
            caption = f"position in windows of {mine[0].length} tokens"
        table = Table(
            title=f"perplexity, {protocol}: {mine[0].tokens:,} tokens, "
            f"{mine[0].documents} documents",
            title_justify="left",
            title_style="bold",
            caption=caption,
            caption_justify="left",
        )
        table.add_column("scaling", no_wrap=True)
        for first, last in columns:
            heading = f"{first}-{last}" if protocol == "per_position" else f"{last}"
            table.add_column(heading, justify="right", no_wrap=True)
        extra = protocol == "same_tokens" and about["curves"]
        if extra:
            table.add_column("usable", justify="right", no_wrap=True)
        for name in dict.fromkeys(row.name for row in mine):
            cells = [_cell(row) for row in mine if row.name == name]
            if extra:
                cells.append(_usable(about["curves"][name]))
            table.add_row(name, *cells)
        console.print(table)
    if about["curves"]:
        console.print(
            f"usable: the longest length up to which the same tokens stay within "
            f"{about['tolerance_nats']:g} nats of `trained` at the window of "
            f"{about['window']} tokens",
            style="dim",
            highlight=False,
        )
    if not about["reliable"]:
        console.print(
            f"intervals are unreliable: {about['documents']} documents are fewer than 20",
            style="yellow",
        )


def _cell(row: Row) -> str:
    if row.ppl > 1e6:
        return f"e^{row.nll:.1f}"
    return f"{row.ppl:.3g}" if row.ppl >= 100 else f"{row.ppl:.2f}"


def _usable(curve: dict[str, Any]) -> str:
    usable = curve["usable_length"]
    if usable is None:
        return "none"
    return f"{'≥ ' if curve['usable_length_is_last_tested'] else ''}{usable:,}"
