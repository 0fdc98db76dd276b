"""Terminal output: a console that prints text as it is, and the overview before the work starts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rope_jax.errors import printable
from rope_jax.positions.maps import PositionMap
from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling


class _PlainConsole(Console):
    """A console that escapes what a terminal would obey, whatever is printed.

    Only line breaks pass. Where one may be part of a name, call `printable` on the name first.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        # before Rich makes it a Text, which drops some control characters silently
        return super().render_str(_escaped(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(_escaped(segment.text), segment.style)


def _escaped(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def plain_console(**options: Any) -> Console:
    """Return a console that prints text as it is: no Rich markup, no emoji codes, no highlighting.

    Names and paths come from the user: `[red]` in one of them is part of the name, and an escape
    character is shown as `\\x1b`. Style the program's own text with `style=` or `rich.text.Text`.
    options: passed to `rich.console.Console`.
    """
    return _PlainConsole(markup=False, emoji=False, highlight=False, **options)


def print_warning(console: Console, message: str) -> None:
    """Print one line in yellow, such as that a damaged file is left out."""
    console.print(Text(printable(message), style="yellow"), soft_wrap=True)


def print_overview(console: Console, title: str, facts: Mapping[str, str | Sequence[str]]) -> None:
    """Print a titled list of named facts; a fact of several strings has one line for each."""
    console.print(Text(printable(title), style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        lines = [value] if isinstance(value, str) else value
        table.add_row(Text("  " + printable(name)), Text("\n".join(map(printable, lines))))
    console.print(table)


def describe_scaling(
    layers: RotaryLayers, scaling: Scaling, seq_len: int, name: str | None = None
) -> list[str]:
    """Describe the scaling in force at a length: one line, or one per kind of layer.

    name: shown for the scaling; None: its type. Raises ValueError if it is undefined at `seq_len`.
    """
    layers_of_kind: dict[tuple[RotaryGeometry, str], list[int]] = {}
    scalings = {}
    for layer in range(layers.count):
        geometry, own = layers.for_layer(layer, scaling)
        kind = geometry, own.model_dump_json()
        layers_of_kind.setdefault(kind, []).append(layer)
        scalings[kind] = own
    lines = []
    for kind, numbers in layers_of_kind.items():
        geometry, own = kind[0], scalings[kind]
        line = f"{name or own.type}: {_describe_frequencies(own, geometry, seq_len)}"
        if len(layers_of_kind) > 1:
            plural = "s" if len(numbers) > 1 else ""
            shown = ", ".join(map(str, numbers))
            line = f"layer{plural} {shown}: {own.type}, base {geometry.base:g}: {line}"
        lines.append(line)
    return lines


def describe_map(map_: PositionMap) -> str:
    """Describe a position map and its settings, such as "map leaky_rerope: window 96, k 18.3"."""
    settings = ", ".join(f"{name} {value}" for name, value in map_.shown_settings.items())
    return f"map {map_.type}: {settings}"


def _describe_frequencies(scaling: Scaling, geometry: RotaryGeometry, seq_len: int) -> str:
    """Describe the frequencies θ and attention factor m in force, θ relative to no scaling."""
    frequencies = scaling.frequencies(geometry, seq_len)
    inv_freq = np.asarray(frequencies.inv_freq, np.float64)
    rotating = inv_freq[inv_freq > 0]
    parts = ["no pair rotates"]
    if rotating.size:
        ratio = inv_freq / geometry.inv_freq()
        shortest, longest = 2 * np.pi / rotating.max(), 2 * np.pi / rotating.min()
        parts = [
            f"wavelengths {shortest:.4g} to {longest:.4g} tokens",
            f"θ × {_range(ratio.max(), ratio.min())}",
        ]
    parts.append(f"m {float(frequencies.attention_factor):.4g}")
    if scaling.query_scale is not None:
        last = scaling.query_scale_at(geometry, np.array([seq_len - 1]))[0]
        parts.append(f"queries × 1 … {last:.4g} ({scaling.query_scale.type})")
    return ", ".join(parts)


def _range(first: float, last: float) -> str:
    return f"{first:.4g}" if np.isclose(first, last) else f"{first:.4g} … {last:.4g}"
