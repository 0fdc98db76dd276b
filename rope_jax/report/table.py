"""One table, written as Markdown and LaTeX, and printed in a terminal."""

import html
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from rope_jax.console import make_table, print_wrapped, width_of
from rope_jax.console import print_table as console_table
from rope_jax.errors import printable

BEST = "•"
BELOW_TRUNCATION = "*"
# Characters special to Markdown; an underscore only where it could begin or end emphasis. GitHub
# also makes links of https://…, www.… and a@b.c.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|~$&#@]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.")
_LATEX = str.maketrans(
    {
        **{character: rf"\{character}" for character in "{}$&#%_"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"},
        **{"`": r"\`{}", "±": r"$\pm$", "−": "$-$", "≥": r"$\geq$", "†": r"\dag{}"},
        **{"–": r"\textendash{}", "…": r"\ldots{}", "∞": r"$\infty$"},
    }
)


class Cell(NamedTuple):
    """A value of a table and its interval, as text."""

    value: str = ""
    interval: str = ""
    """"±" and half its width, or its ends in brackets where these say more; "" if there is none."""
    is_best: bool = False
    is_below: bool = False
    """Whether it is below truncation by more than the interval of the difference."""

    @property
    def marks(self) -> str:
        """The signs behind it in a terminal."""
        return BEST * self.is_best + BELOW_TRUNCATION * self.is_below


class Line(NamedTuple):
    """A line of a table."""

    labels: tuple[str, ...]
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Table:
    """A table before it is written."""

    title: str
    """The protocol or the task; "" of a table that continues the one before it."""
    about: str
    labels: tuple[str, ...]
    """Headings of the columns that say what a line is about."""
    columns: tuple[str, ...]
    lines: Sequence[Line]
    below: Sequence[Line] = ()
    """Lines to compare the others with, such as truncation."""
    intervals: str = ""
    notes: tuple[str, ...] = ()

    @property
    def heading(self) -> tuple[str, ...]:
        return self.labels + self.columns

    @property
    def all_lines(self) -> list[Line]:
        """All lines, with empty cells where one has none."""
        return [
            Line(line.labels, [*line.cells, *[Cell()] * (len(self.columns) - len(line.cells))])
            for line in (*self.lines, *self.below)
        ]

    def legend(self, best: str, intervals: str = "") -> list[str]:
        """Return what explains its values; best: how they are marked; intervals: where they are."""
        cells = [cell for line in self.all_lines for cell in line.cells]
        legend = []
        if any(cell.interval for cell in cells):
            legend.append(intervals or self.intervals)
        if any(cell.is_best for cell in cells):
            legend.append(f"{best} best of its column")
        if any(cell.is_below for cell in cells):
            sign = BELOW_TRUNCATION
            legend.append(f"{sign} below truncation by more than the interval of the difference")
        return [*legend, *self.notes]

    @property
    def caption(self) -> str:
        """What its values are, and what explains them."""
        text = "; ".join([self.about, *self.legend("bold:")])
        return f"{text[:1].upper()}{text[1:]}." if text else ""


def escape_markdown(text: str) -> str:
    """Return one line of Markdown that shows `text` as it is, also in a table."""
    return _MARKDOWN.sub(r"\\\g<0>", printable(text))


def format_markdown(table: Table) -> str:
    """Return the title, the caption and the table; the best values are bold."""

    def written(cell: Cell) -> str:
        bold = "**" * cell.is_best
        value = f"{bold}{escape_markdown(cell.value)}{bold}"
        mark = escape_markdown(BELOW_TRUNCATION * cell.is_below)
        return f"{value} {escape_markdown(cell.interval)}".rstrip() + mark

    rows = [
        [*map(escape_markdown, line.labels), *map(written, line.cells)] for line in table.all_lines
    ]
    left = len(table.labels)
    rule = ["---"] * left + ["---:"] * (len(table.heading) - left)
    heading = map(escape_markdown, table.heading)
    text = "".join(f"| {' | '.join(line)} |\n" for line in (heading, rule, *rows))
    above = f"## `{table.title}`\n\n" if table.title else ""
    caption = f"{escape_markdown(table.caption)}\n\n" if table.caption else ""
    return f"{above}{caption}{text}"


def format_html(table: Table) -> str:
    """Return the caption and the table; the best values are bold."""

    def row(tag: str, labels: Iterable[str], cells: Iterable[str]) -> str:
        texts = [f'<{tag} class="text">{html.escape(printable(label))}</{tag}>' for label in labels]
        return f"<tr>{''.join([*texts, *(f'<{tag}>{cell}</{tag}>' for cell in cells)])}</tr>"

    def written(cell: Cell) -> str:
        value = f"<b>{cell.value}</b>" if cell.is_best else cell.value
        mark = BELOW_TRUNCATION if cell.is_below else ""
        return f"{value}{mark} <small>{cell.interval}</small>"

    lines = [row("th", table.labels, table.columns)]
    lines += [row("td", line.labels, map(written, line.cells)) for line in table.all_lines]
    caption = html.escape(printable(table.caption))
    return f'<p class="soft">{caption}</p><table>{"".join(lines)}</table>'


def yaml_block(yaml: str) -> str:
    return f"```yaml\n{yaml}```"


def escape_latex(text: str) -> str:
    """Return LaTeX that shows one line of text as it is; letters of other scripts need LuaLaTeX."""
    # two hyphens would be a dash
    return re.sub("-(?=-)", "-{}", printable(text).translate(_LATEX))


def latex_cell(cell: Cell) -> str:
    """Return a value, bold if it is the best of its column, and its interval, smaller."""
    value, interval = map(_latex_number, (cell.value, cell.interval))
    if cell.is_best and value:
        value = rf"\textbf{{{value}}}"
    return rf"{value} {{\scriptsize {interval}}}" if interval else value


def _latex_number(text: str) -> str:
    text = re.sub(r"e\\textasciicircum\{\}([\d.]+|inf)", r"$e^{\1}$", text.translate(_LATEX))
    return text.replace("{inf}", r"\infty")


def latex_comments(*notes: str) -> list[str]:
    return [f"% {line}" for note in notes for line in textwrap.wrap(printable(note), 96)]


def format_latex(table: Table) -> str:
    """Return a tabular environment, for a table environment in a paper; it needs booktabs.

    The comments above it say what a caption has to. Lines that share all labels but the last have
    them written once, and a rule before them.
    """
    lines = latex_comments(table.title, table.caption, r"Needs \usepackage{booktabs}.")
    left = len(table.labels)
    lines.append(rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(table.heading) - left)}}}")
    lines += [r"  \toprule", _latex_row(map(escape_latex, table.heading))]
    above = None
    for number, line in enumerate(table.all_lines):
        *shared, name = line.labels
        if shared != above or number == len(table.lines):  # another group, or truncation
            lines.append(r"  \midrule")
        written = [""] * len(shared) if shared == above else shared
        above = shared
        labels = map(escape_latex, (*written, name))
        lines.append(_latex_row((*labels, *map(latex_cell, line.cells))))
    return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}"]) + "\n"


def _latex_row(cells: Iterable[str]) -> str:
    return f"  {' & '.join(cells)} \\\\"


def print_table(console: Console, table: Table, *, file: str = "results.md") -> list[str]:
    """Print one line per curve, and return what explains the table.

    Where a table is too wide, intervals are written closer ("4.08±0.57") or, if that does not
    suffice, left out, and then the table goes on below itself. No number is cut.

    file: which has all intervals.
    """
    print_wrapped(console, f"{table.title}: {table.about}", "bold")
    for space in (" ", "", None):
        headings, rows = _padded(table, space)
        # the cells are padded, because rich would move marks below digits
        form: dict[str, int] = {"left": len(headings), "gap": 1 if space == "" else 2}
        if width_of(console, make_table(headings, rows, **form)) <= console.width:
            break
    console_table(console, headings, rows, **form)
    return table.legend(BEST, f"{file} has the 95% intervals" if space is None else "")


def _padded(table: Table, space: str | None) -> tuple[Sequence[str], Sequence[Sequence[Text]]]:
    """Return headings and rows; lines that share all labels but the last have a heading in common.

    space: between a value and its interval; None: without intervals.
    """
    names: list[Text] = []
    lines: list[Sequence[Cell]] = []
    above: list[str] = []
    for line in table.all_lines:
        *shared, name = map(printable, line.labels)
        if shared != above and len(line.labels) > 1:
            names.append(Text(" ".join(shared)))
            lines.append([Cell()] * len(line.cells))
        above = shared
        names.append(Text(f"  {name}" if shared else name))
        lines.append(line.cells)
    headings, columns = [table.labels[-1]], [names]
    for heading, *cells in zip(table.columns, *lines, strict=False):
        room = max(len(cell.marks) for cell in cells)  # behind each cell
        texts = [
            Text.assemble(
                (cell.value, "bold" if cell.is_best else ""),
                ("" if space is None else cell.interval and space + cell.interval, "dim"),
                cell.marks.ljust(room),
            )
            for cell in cells
        ]
        width = max(len(heading) + room, *(text.cell_len for text in texts))
        for text in texts:
            text.pad_left(width - text.cell_len)
        headings.append((heading + " " * room).rjust(width))
        columns.append(texts)
    return headings, list(zip(*columns, strict=True))
