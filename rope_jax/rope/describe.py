"""Scalings in a line: what they do to the frequencies at one length."""

import numpy as np

from rope_jax.rope.geometry import RotaryGeometry
from rope_jax.rope.layers import RotaryLayers
from rope_jax.rope.strategies import Scaling


def describe_scaling(
    layers: RotaryLayers, scaling: Scaling, seq_len: int, name: str | None = None
) -> list[str]:
    """Describe the scaling in force at a length: one line, or one per kind of layer.

    name: shown for the scaling, instead of its type. ValueError: it is undefined at `seq_len`.
    """
    layers_of_kind: dict[tuple[RotaryGeometry, str], list[int]] = {}
    for layer in range(layers.count):
        geometry, own = layers.for_layer(layer, scaling)
        layers_of_kind.setdefault((geometry, own.model_dump_json()), []).append(layer)
    lines = []
    for numbers in layers_of_kind.values():
        geometry, own = layers.for_layer(numbers[0], scaling)
        described = _describe_frequencies(own, geometry, seq_len)
        if len(layers_of_kind) == 1:
            lines.append(f"{name or own.type}: {described}")
            continue
        which = f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        whose = f"{name}, {which}" if name else which
        lines.append(f"{whose}: {own.type}, base {geometry.base:,g}; {described}")
    return lines


def _describe_frequencies(scaling: Scaling, geometry: RotaryGeometry, seq_len: int) -> str:
    """θ'/θ relative to no scaling, and the attention factor m; factors of 1 are left out."""
    frequencies = scaling.frequencies(geometry, seq_len)
    inv_freq = np.asarray(frequencies.inv_freq, np.float64)
    rotating = inv_freq[inv_freq > 0]
    parts = ["no pair rotates"]
    if rotating.size:
        parts = [f"slowest wavelength {_tokens(2 * np.pi / rotating.min())}"]
        ratio = inv_freq / geometry.inv_freq()
        if not np.allclose(ratio, 1):
            parts.append(f"frequencies × {_range(ratio.max(), ratio.min())}")
    m = float(frequencies.attention_factor)
    if not np.isclose(m, 1):
        parts.append(f"m {m:.3g}")
    if scaling.query_scale is not None:
        last = scaling.query_scale_at(geometry, np.array([seq_len - 1]))[0]
        parts.append(f"queries × {_range(1.0, float(last))} ({scaling.query_scale.type})")
    return "; ".join(parts)


def _tokens(wavelength: float) -> str:
    """Return a wavelength to four digits, such as "35,330 tokens"."""
    rounded = float(f"{wavelength:.4g}")
    if rounded >= 1e12:
        return f"{rounded:.3g} tokens"
    return f"{rounded:,.0f} tokens" if rounded >= 1000 else f"{rounded:.4g} tokens"


def _range(first: float, last: float) -> str:
    return f"{first:.3g}" if np.isclose(first, last) else f"{first:.3g}…{last:.3g}"
