"""The style of figures: one colour per kind of curve, markers, and how text is drawn."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib


@dataclass(frozen=True)
class LineStyle:
    """A curve's style, as matplotlib's keyword arguments."""

    color: Any
    marker: str
    linestyle: Any = "-"
    linewidth: float = 1.5


# Okabe and Ito's colours, then Tol's: colour-blind readers can tell them apart. One per scaling
# type; a dynamic type has its family's colour and another marker.
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
# Position maps, which a figure rarely shows beside more than a few scalings.
_COLOURS |= {
    "leaky_rerope": "#009E73",
    "rerope": "#117733",
    "self_extend": "#CC79A7",
    "dual_chunk": "#882255",
    "streaming": "#56B4E9",
    "lm_infinite": "#332288",
    "string": "#DDCC77",
    "far_frequencies": "#AA4499",
}
# Types without a colour above take these in turn.
_MORE_COLOURS = ("#999933", "#F0E442", "#888888", "#6699CC")
_MARKERS = "os^Dv<>P"
BAND_OPACITY = 0.15


def literal_text() -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws text as it is.

    A name with two dollar signs is not a formula. Use it for both drawing and saving:
    matplotlib makes tick labels only when it saves.
    """
    return matplotlib.rc_context({"text.parse_math": False})


def assign_colours(kinds: Iterable[str]) -> dict[str, str]:
    """Return a colour for each kind of curve: the type of a scaling or map, or "trained".

    A kind listed in `_COLOURS` has the same colour in every figure.
    """
    unknown = [kind for kind in dict.fromkeys(kinds) if kind not in _COLOURS]
    more = {kind: _MORE_COLOURS[i % len(_MORE_COLOURS)] for i, kind in enumerate(unknown)}
    return _COLOURS | more


def assign_styles(kinds: Mapping[str, str]) -> dict[str, LineStyle]:
    """Return a style for each curve: its kind's colour, with a different marker for each curve.

    kinds: the kind of each curve, by the curve's name.
    """
    colours = assign_colours(kinds.values())
    used: dict[str, int] = {}
    styles = {}
    for name, kind in kinds.items():
        colour = colours[kind]
        number = used[colour] = used.get(colour, -1) + 1
        styles[name] = LineStyle(colour, _MARKERS[number % len(_MARKERS)])
    return styles


def distinct_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """Return a style for each curve, of as many different colours as there are."""
    colours = list(dict.fromkeys(_COLOURS.values()))
    return {
        name: LineStyle(colours[i % len(colours)], _MARKERS[i % len(_MARKERS)])
        for i, name in enumerate(names)
    }
