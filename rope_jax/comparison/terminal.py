"""A comparison in the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rope_jax.comparison.curves import Comparison
from rope_jax.comparison.figure import assign_group_styles
from rope_jax.comparison.report import format_interval, points_of
from rope_jax.errors import printable
from rope_jax.sweeps.terminal import perplexity_text


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the perplexities of the first protocol, and the notes."""
    curves = [curve for curve in comparison.curves if curve.is_newest]
    protocol = curves[0].points[0].protocol
    plotted = points_of(protocol, curves)
    lengths = sorted({length for one in plotted for length in one.points})
    # Where all groups have one and the same curve, a column for its name would take away the room
    # without which Rich shortens the names of all groups to the same beginning.
    by_group = bool(assign_group_styles(comparison))
    what = f"perplexity of {curves[0].name}" if by_group else "perplexity"
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"{what}, {protocol}: ± half of the 95% interval over documents and seeds",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("runs", overflow="fold")
    if not by_group:
        table.add_column("scaling", no_wrap=True)
    for length in lengths:
        table.add_column(f"{length}", justify="right")
    previous = None
    for one in plotted:
        group = one.curve.group
        cells = [
            f"{perplexity_text(point.nll)}\n{format_interval(point)}".rstrip() if point else ""
            for point in map(one.points.get, lengths)
        ]
        # Text, not strings: in a string Rich would read [red] in a name as markup
        label = Text("" if group is previous else group.label)
        names = [label] if by_group else [label, Text(one.curve.name)]
        table.add_row(*names, *map(Text, cells))
        previous = group
    console.print(table)
    for note in comparison.notes:
        console.print(Text(printable(note), style="yellow"))
