"""A comparison in the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rope_jax.comparison.curves import Comparison
from rope_jax.comparison.figure import assign_group_styles
from rope_jax.comparison.report import format_interval, points_of
from rope_jax.errors import printable
from rope_jax.evaluation.text import perplexity_text


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the perplexities of the first protocol, and the notes."""
    curves = [curve for curve in comparison.curves if curve.is_newest]
    protocol = curves[0].points[0].protocol
    plotted = points_of(protocol, curves)
    lengths = sorted({length for one in plotted for length in one.points})
    # What all rows have in common is part of the title, because there is little room beside the
    # numbers: Rich would cut the names of all groups after the same few letters.
    what, columns = "perplexity", ["runs", "scaling"]
    if len(comparison.groups) == 1:
        what, columns = f"{what} of {comparison.groups[0].label}", ["scaling"]
    elif assign_group_styles(comparison):
        what, columns = f"{what} of {curves[0].name}", ["runs"]
    title = f"{what}, {protocol}: ± half of the 95% interval over documents and seeds"
    # Text, not strings: in a string Rich would read [red] in a name as markup
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=Text(title, style="bold"),
        title_justify="left",
    )
    for column in columns:
        table.add_column(column, no_wrap=column == "scaling", overflow="fold")
    for length in lengths:
        table.add_column(f"{length}", justify="right")
    previous = None
    for one in plotted:
        group = one.curve.group
        cells = [
            f"{perplexity_text(point.nll)}\n{format_interval(point)}".rstrip() if point else ""
            for point in map(one.points.get, lengths)
        ]
        names = {"runs": "" if group is previous else group.label, "scaling": one.curve.name}
        table.add_row(*(Text(names[column]) for column in columns), *map(Text, cells))
        previous = group
    console.print(table)
    for note in comparison.notes:
        console.print(Text(printable(note), style="yellow"))
