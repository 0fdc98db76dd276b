"""What a person reads in the terminal before the work starts."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from rope_jax.rope import Frequencies, RotaryGeometry


def facts(console: Console, title: str, rows: Mapping[str, str | Sequence[str]]) -> None:
    """A titled list of named facts; one with several lines is indented under its name."""
    console.print(title, style="bold", highlight=False)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row("  " + name, value if isinstance(value, str) else "\n".join(value))
    console.print(table, highlight=False)


def device_line(dtype: str) -> str:
    """Which devices compute, and in what dtype."""
    devices = jax.devices()
    return f"{len(devices)} × {devices[0].device_kind} ({devices[0].platform}), {dtype}"


def scaling_line(frequencies: Frequencies, geometry: RotaryGeometry) -> str:
    """The effective frequencies of one strategy, against those of no scaling."""
    inv_freq = np.asarray(frequencies.inv_freq, np.float64)
    turning = inv_freq[inv_freq > 0]
    if not turning.size:
        return "no pair rotates"
    ratio = inv_freq / geometry.inv_freq()
    shortest, longest = 2 * np.pi / turning.max(), 2 * np.pi / turning.min()
    return (
        f"wavelengths {shortest:.4g} to {longest:.4g} tokens, "
        f"θ × {_range(ratio.max(), ratio.min())}, m {float(frequencies.attention_factor):.4g}"
    )


def _range(first: float, last: float) -> str:
    return f"{first:.4g}" if np.isclose(first, last) else f"{first:.4g} … {last:.4g}"
