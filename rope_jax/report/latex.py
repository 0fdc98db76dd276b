"""Text and tables as LaTeX. The tables need the package booktabs and nothing else."""

import re
import textwrap
from collections.abc import Sequence

from rope_jax.errors import printable

_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: rf"\{character}" for character in "{}$&#%_"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "`": r"\`{}",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "†": r"\dag{}",
    "–": r"\textendash{}",
    "…": r"\ldots{}",
    "∞": r"$\infty$",
}
_POWER = re.compile(r"e\^(inf|[\d.]+)")


def escape_latex(text: str) -> str:
    """Return LaTeX that shows one line of text as it is, whatever engine reads it.

    A character that pdfLaTeX's default fonts lack is written as its number, such as U+03B8.
    """
    # two hyphens would be a dash
    return re.sub("-(?=-)", "-{}", "".join(map(_escaped, printable(text))))


def _escaped(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    # of the letters of Latin-1, these are not in the fonts of OT1, pdfLaTeX's default encoding
    is_known = " " <= character <= "~" or ("À" <= character <= "ÿ" and character not in "ÐÞðþ×÷")
    return character if is_known else f"U+{ord(character):04X}"


def latex_value(value: str, interval: str, *, is_best: bool) -> str:
    """Return a cell: a value, bold if it is the best of its column, and its interval, smaller.

    Both are text as `rope_jax.report.text` makes it: "4.10", "e^12.5", "±0.57", "[0.1, 20]".
    """
    shown = _number(value)
    if is_best and value:
        shown = rf"\textbf{{{shown}}}"
    return f"{shown} {{\\scriptsize {_number(interval)}}}" if interval else shown


def _number(text: str) -> str:
    text = _POWER.sub(lambda power: f"\0{power[1]}\1", text)  # before ^ is escaped
    text = "".join(one if one in "\0\1-" else _escaped(one) for one in text)
    text = text.replace("\0inf\1", r"$e^\infty$").replace("-", "$-$")
    return re.sub("\0([^\1]*)\1", r"$e^{\1}$", text)


def format_tabular(
    heading: Sequence[str],
    blocks: Sequence[Sequence[Sequence[str]]],
    *,
    left: int,
    notes: Sequence[str],
) -> str:
    """Return a tabular environment of LaTeX cells, after comments.

    heading: LaTeX as well. blocks: of rows, with a rule between them. left: how many columns are
    aligned at the left; numbers are aligned at the right. notes: plain text for the comments.
    """
    lines = [f"% {line}" for note in notes for line in textwrap.wrap(printable(note), 96)]
    lines.append(rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(heading) - left)}}}")
    lines += [r"  \toprule", _row(heading)]
    for block in blocks:
        lines += [r"  \midrule", *map(_row, block)]
    lines += [r"  \bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"  {' & '.join(cells)} \\\\"
