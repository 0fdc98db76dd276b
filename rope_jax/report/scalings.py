"""What a scaling does at a length, in a line or two."""

import numpy as np

from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling


def describe_scaling(
    layers: RotaryLayers, scaling: Scaling, seq_len: int, name: str | None = None
) -> list[str]:
    """Describe the scaling, by type or `name`, at a length: one line, or one per kind of layer."""
    kinds: dict[str, list[int]] = {}
    for layer in range(layers.count):
        kinds.setdefault(repr(layers.for_layer(layer, scaling)), []).append(layer)
    lines = []
    for numbers in kinds.values():
        geometry, applied = layers.for_layer(numbers[0], scaling)
        described = _describe_frequencies(applied, geometry, seq_len)
        if len(kinds) > 1:
            which = f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
            whose = f"{name}, {which}" if name else which
            lines.append(f"{whose}: {applied.type}, base {geometry.base:,g}; {described}")
        else:
            lines.append(f"{name or applied.type}: {described}")
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
        first, last = scaling.query_scale_at(geometry, np.array([0, seq_len - 1])).tolist()
        parts.append(f"queries × {_range(first, last)} ({scaling.query_scale.type})")
    return "; ".join(parts)


def _tokens(wavelength: float) -> str:
    """Return a wavelength to four digits, such as "35,330 tokens"."""
    rounded = float(f"{wavelength:.4g}")
    return f"{rounded:{',.0f' if 1000 <= rounded < 1e12 else '.4g'}} tokens"


def _range(first: float, last: float) -> str:
    return f"{first:.3g}" if np.isclose(first, last) else f"{first:.3g}…{last:.3g}"
