"""The terminal: a console that prints names as they are, and the facts before the work starts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling


def plain_console(**options: Any) -> Console:
    """Return a console that prints text as it is: no Rich markup, no emoji codes, no highlighting.

    Names and paths come from the user: `[red]` in one of them is part of the name. Style what the
    program itself says with `style=` or `rich.text.Text`. options: as `rich.console.Console` takes.
    """
    return Console(markup=False, emoji=False, highlight=False, **options)


def facts(console: Console, title: str, rows: Mapping[str, str | Sequence[str]]) -> None:
    """A titled list of named facts; one with several lines is indented under its name."""
    console.print(title, style="bold", highlight=False)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row("  " + name, value if isinstance(value, str) else "\n".join(value))
    console.print(table, highlight=False)


def scaling_lines(
    layers: RotaryLayers, scaling: Scaling, seq_len: int, name: str | None = None
) -> list[str]:
    """What is in force at a text's length: a line, or one for each kind of layer."""
    kinds: dict[tuple[RotaryGeometry, str], list[int]] = {}
    scalings = {}
    for layer in range(layers.count):
        geometry, own = layers.for_layer(layer, scaling)
        key = geometry, own.model_dump_json()
        kinds.setdefault(key, []).append(layer)
        scalings[key] = own
    lines = []
    for (geometry, settings), numbers in kinds.items():
        own = scalings[geometry, settings]
        line = f"{name or own.type}: {_effect(own, geometry, seq_len)}"
        if len(kinds) > 1:
            plural = "s" if len(numbers) > 1 else ""
            which = ", ".join(map(str, numbers))
            line = f"layer{plural} {which}: {own.type}, base {geometry.base:g}: " + line
        lines.append(line)
    return lines


def _effect(scaling: Scaling, geometry: RotaryGeometry, seq_len: int) -> str:
    """The effective frequencies of one strategy, against those of no scaling."""
    frequencies = scaling.frequencies(geometry, seq_len)
    inv_freq = np.asarray(frequencies.inv_freq, np.float64)
    turning = inv_freq[inv_freq > 0]
    parts = ["no pair rotates"]
    if turning.size:
        ratio = inv_freq / geometry.inv_freq()
        shortest, longest = 2 * np.pi / turning.max(), 2 * np.pi / turning.min()
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
