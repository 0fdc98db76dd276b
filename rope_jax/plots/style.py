"""The style of all figures: widths, fonts, colours, markers, and what the formats need.

Figures are made without pyplot and inside `figure_style`, so they neither change the caller's
matplotlib settings nor depend on them.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib.style

from rope_jax.config.presentation import FigureWidth

WIDTHS: Mapping[FigureWidth, float] = {"column": 3.3, "page": 6.8}
"""Inches."""
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 9.0, 8.0, 7.0
"""Points: a figure's title; its panels' titles and axes; ticks, legends and labels."""
MOST_CURVES = 6
"""Curves in a panel; of more, each has a panel of its own. Also: how many bands can overlap."""
BAND_OPACITY = 0.15
BACKGROUND = "0.82"
"""Curves that another panel of the figure is about."""
NOTE = "0.35"
"""Labels of the window and of axes on the right."""
ZERO_LINE: Mapping[str, Any] = {"color": "0.25", "linewidth": 1.2, "zorder": 1.5}
"""The line at zero in figures of differences, heavier than the grid and than the axes."""

_STYLE = {
    "figure.titlesize": TITLE_SIZE,
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), TEXT_SIZE),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), SMALL_SIZE),
    **dict.fromkeys(("legend.fontsize", "legend.title_fontsize"), SMALL_SIZE),
    "legend.frameon": False,
    "legend.handlelength": 2.4,  # shows a whole dash pattern
    **dict.fromkeys(("axes.linewidth", "grid.linewidth"), 0.6),
    **dict.fromkeys(("xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    "axes.axisbelow": True,
    "grid.color": "0.92",
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "lines.markeredgewidth": 0.0,
    "hatch.linewidth": 0.6,
    # A name with two dollar signs is not a formula.
    "text.parse_math": False,
    "savefig.dpi": 200,
    # Journals want embedded TrueType fonts: text in the PDF can be searched and edited.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    # As outlines: a viewer without this font would substitute another, whose text is wider or
    # narrower and would run into the lines.
    "svg.fonttype": "path",
    # The ids in an SVG file are hashes of this and of what they name, so that the same figure has
    # the same bytes.
    "svg.hashsalt": "rope-jax",
}


@dataclass(frozen=True)
class LineStyle:
    """A curve's style, as matplotlib's keyword arguments."""

    color: Any
    marker: str
    linestyle: Any = "-"
    linewidth: float = 1.2


REFERENCE = LineStyle("0.35", "", (0, (3, 1.5)), 0.8)
"""A curve that other panels show again for comparison."""

_BLACK, _GREY = "#000000", "#888888"
_ORANGE, _SKY, _GREEN = "#E69F00", "#56B4E9", "#009E73"
_BLUE, _VERMILION, _PURPLE = "#0072B2", "#D55E00", "#CC79A7"
# Okabe and Ito's colours, which colour-blind readers can tell apart, without yellow, which is
# too faint for lines on white.
OKABE_ITO = (_BLACK, _VERMILION, _BLUE, _GREEN, _ORANGE, _PURPLE, _SKY)
PALETTE = (
    *OKABE_ITO,
    # Tol's muted colours, where those do not suffice.
    *("#882255", "#332288", "#999933", "#44AA99", "#661100", "#DDCC77", "#AA4499"),
)
# These have the same colour in every figure; a dynamic type has its family's.
_FIXED = {"trained": _BLACK, "none": _GREY, "pi": _ORANGE, "ntk": _BLUE, "yarn": _VERMILION}
_FIXED |= {"dynamic_pi": _ORANGE, "dynamic_ntk": _BLUE, "dynamic_yarn": _VERMILION}
# These have theirs unless another kind in the figure has it.
_PREFERRED = {
    **dict.fromkeys(("llama3", "ntk_by_parts", "leaky_rerope"), _GREEN),
    **dict.fromkeys(("longrope", "abf", "rerope", "self_extend"), _PURPLE),
    **dict.fromkeys(("mixed_base", "streaming"), _SKY),
}
MARKERS = "os^Dv<>P"


def figure_style() -> AbstractContextManager[None]:
    """Return a context in which figures have this style, whatever the caller's settings.

    Use it for both drawing and saving: matplotlib makes tick labels only when it saves.
    """
    return matplotlib.style.context(_STYLE, after_reset=True)


def assign_styles(kinds: Mapping[str, str]) -> dict[str, LineStyle]:
    """Return a style for each curve: a colour, and a marker, by which up to eight differ as well.

    The first curve of a common kind has the kind's colour in every figure; the others have unused
    ones while there are any. kinds: a scaling's or map's type or "trained", by the curve's name.
    """
    colours: dict[str, str] = {}
    firsts: dict[str, str] = {}
    for name, kind in kinds.items():
        firsts.setdefault(kind, name)
    for known in (_FIXED, _PREFERRED):
        for name, kind in kinds.items():
            colour = known.get(kind)
            if colour and firsts[kind] == name and colour not in colours.values():
                colours[name] = colour
    # those that have a meaning in other figures come last of Okabe and Ito's; not black, which
    # stands for `trained` even in a figure without it
    ranked = sorted(OKABE_ITO[1:], key=lambda colour: colour in _FIXED.values())
    unused = [c for c in (*ranked, *PALETTE[len(OKABE_ITO) :]) if c not in colours.values()]
    for name, kind in kinds.items():
        if name not in colours:
            shared = colours.get(firsts[kind], PALETTE[1 + len(colours) % (len(PALETTE) - 1)])
            colours[name] = unused.pop(0) if unused else shared
    return {
        name: LineStyle(colours[name], MARKERS[place % len(MARKERS)])
        for place, name in enumerate(kinds)
    }


def distinct_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """Return a style for each curve, of as many different colours as there are."""
    return {
        name: LineStyle(PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)])
        for i, name in enumerate(names)
    }
