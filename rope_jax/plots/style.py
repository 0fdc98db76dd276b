"""The style of all figures: widths, fonts, colours, markers, and what the formats need.

Figures are made without pyplot and inside `figure_style`, so they neither change the caller's
matplotlib settings nor depend on them.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.style

from rope_jax.config.presentation import FigureWidth

WIDTHS: Mapping[FigureWidth, float] = {"column": 3.3, "page": 6.8}
TEXT_SIZE, SMALL_SIZE = 8.0, 7.0
"""Points: panels' titles and axes; ticks, legends and labels."""
MAX_CURVES = 6
"""Curves in a panel; of more, each has a panel of its own. Also: how many bands can overlap."""
BAND_OPACITY = 0.15
BACKGROUND = "0.82"
"""Curves that another panel of the figure is about."""
NOTE = "0.35"
"""Labels of the window and of axes on the right."""
ZERO_LINE: Mapping[str, Any] = {"color": "0.25", "linewidth": 1.2, "zorder": 1.5}
"""The line at zero in figures of differences, heavier than the grid and than the axes."""

_STYLE = Path(__file__).with_name("rope_jax.mplstyle")


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
_WINE, _INDIGO, _OLIVE, _TEAL = "#882255", "#332288", "#999933", "#44AA99"
_BROWN, _SAND, _MAGENTA = "#661100", "#DDCC77", "#AA4499"
# Okabe and Ito's colours, which colour-blind readers can tell apart, without yellow, which is
# too faint for lines on white.
OKABE_ITO = (_BLACK, _VERMILION, _BLUE, _GREEN, _ORANGE, _PURPLE, _SKY)
PALETTE = (
    *OKABE_ITO,
    # Tol's muted colours, where those do not suffice.
    *(_WINE, _INDIGO, _OLIVE, _TEAL, _BROWN, _SAND, _MAGENTA),
)
# One colour and one dash per type, the same in every figure and page: a family's dynamic or other
# variant is dash-dotted in the family's colour, and position maps are dashed.
_KINDS: Mapping[str, tuple[str, str]] = {
    **{"trained": (_BLACK, "-"), "none": (_GREY, "-")},
    **{"pi": (_ORANGE, "-"), "dynamic_pi": (_ORANGE, "-.")},
    **{"ntk": (_BLUE, "-"), "dynamic_ntk": (_BLUE, "-.")},
    **{"yarn": (_VERMILION, "-"), "dynamic_yarn": (_VERMILION, "-.")},
    **{"llama3": (_GREEN, "-"), "ntk_by_parts": (_GREEN, "-.")},
    **{"longrope": (_PURPLE, "-"), "abf": (_TEAL, "-"), "mixed_base": (_SKY, "-")},
    **{"evq_cosh": (_INDIGO, "-"), "p_rope": (_OLIVE, "-"), "cope": (_WINE, "-")},
    **{"drope": (_BROWN, "-"), "explicit": (_MAGENTA, "-")},
    **{"resonance": (_SAND, "-"), "bucketed": (_SAND, "-."), "over": (_TEAL, "-.")},
    **{"leaky_rerope": (_GREEN, "--"), "rerope": (_PURPLE, "--"), "streaming": (_SKY, "--")},
    **{"self_extend": (_INDIGO, "--"), "dual_chunk": (_OLIVE, "--"), "string": (_WINE, "--")},
    **{"lm_infinite": (_TEAL, "--"), "far_frequencies": (_BROWN, "--")},
    "fitted": (_MAGENTA, "--"),
}
MARKERS = "os^Dv<>P"


def figure_style() -> AbstractContextManager[None]:
    """Return a context in which figures have this style, whatever the caller's settings.

    Use it for both drawing and saving: matplotlib makes tick labels only when it saves.
    """
    return matplotlib.style.context(_STYLE, after_reset=True)


def assign_styles(
    kinds: Mapping[str, str], chosen: Mapping[str, str] | None = None
) -> dict[str, LineStyle]:
    """Return a style for each curve: a colour, a dash, and a marker, of which there are eight.

    The first curve of a known kind has the kind's colour in every figure; the others have unused
    ones while there are any. kinds: a scaling's or map's type or "trained", by the curve's name.
    chosen: colours that the user wants instead, by name.
    """
    firsts = {kind: name for name, kind in reversed([*kinds.items()])}
    colours = {name: _KINDS[kind][0] for kind, name in firsts.items() if kind in _KINDS}
    colours |= chosen or {}
    # those of the most common kinds come last of Okabe and Ito's; not black, which stands for
    # `trained` even in a figure without it
    ranked = sorted(OKABE_ITO[1:], key=(_ORANGE, _BLUE, _VERMILION).__contains__)
    ranked += PALETTE[len(OKABE_ITO) :]
    for name, kind in kinds.items():
        if name not in colours:
            unused = (colour for colour in ranked if colour not in colours.values())
            shared = colours.get(firsts[kind], ranked[len(colours) % len(ranked)])
            colours[name] = next(unused, shared)
    return {
        name: LineStyle(
            colours[name], MARKERS[place % len(MARKERS)], _KINDS.get(kind, ("", "-"))[1]
        )
        for place, (name, kind) in enumerate(kinds.items())
    }
