"""The curves that are asked for: which scaling, in which layers, and its numbers pair by pair.

Imports no jax.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rope_jax.config.inspection import Asked
from rope_jax.config.sweep import ENTRIES
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.pairs import Pairs, effective
from rope_jax.rope.strategies import NoScaling

MOST_CURVES = 12  # what a figure tells apart


def number(value: float) -> str:
    """Four digits or so, for people."""
    if not math.isfinite(value):
        return "∞"
    if 1000 <= value < 999_999.5:
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e")


@dataclass(frozen=True)
class Model:
    """Rotary layers and their training; of a bare geometry one layer, trained without scaling.

    window:  L, tokens of the last stage, under the scaling `trained`.
    stages:  the scaling of each.
    sliding: attention windows of the layers, a pattern that repeats; None: all the text.
    """

    name: str
    layers: RotaryLayers
    window: int
    stages: tuple[Scaling, ...] = (NoScaling(),)
    sliding: tuple[int | None, ...] = (None,)

    @classmethod
    def of(cls, asked: Asked, training: Config | None) -> "Model":
        """What `read` found."""
        if training is None:
            geometry = RotaryGeometry(asked.rotary_dim, asked.base, asked.train_length)
            return cls("", RotaryLayers(geometry), asked.train_length)
        stages = tuple(training.stage_scaling(stage) for stage in range(len(training.stages)))
        window = training.stages[-1].seq_len
        layers, sliding = training.rotary_layers, training.sliding_windows
        return cls(training.name, layers, window, stages, sliding)

    @property
    def trained(self) -> Scaling:
        """The last stage's scaling."""
        return self.stages[-1]

    def title(self) -> str:
        """The model in a line."""
        bases = dict.fromkeys(
            number(geometry.base) for geometry, _ in self.layers.each(NoScaling())
        )
        name = f"{self.name}: " if self.name else ""
        scaling = "" if self.trained.type == "none" else f" with {_label(self.trained)}"
        return (
            f"{name}d {self.layers.geometry.rotary_dim}, base {' and '.join(bases)}, "
            f"trained at {self.window:,} tokens{scaling}"
        )


@dataclass(frozen=True)
class Curve:
    """One scaling, in layers that are alike. kind: its type, or "trained": what colours it."""

    name: str
    kind: str
    scaling: Scaling
    geometry: RotaryGeometry
    pairs: Pairs


def curves(model: Model, asked: Asked, length: int) -> list[Curve]:
    """Of every scaling asked for, or of the model's stages; one for each kind of layer.

    length: n. Layers with a scaling of their own are shown once: it holds whatever the others have.
    """
    made: dict[str, Curve] = {}
    for name, kind, scaling in _wanted(model, asked, length):
        try:
            alike = _layers_alike(model, scaling)
            for numbers in alike:
                curve = _curve(model, name, kind, scaling, numbers, length)
                if len(alike) > 1:
                    curve = replace(curve, name=f"{curve.name} ({_numbers(numbers)})")
                made[curve.name] = curve
        except ValueError as error:  # names a setting of the scaling, or of the geometry
            raise UserError(f"scalings: {name}: {error}") from None
    return list(made.values())


def check_curves(count: int) -> None:
    """UserError where there are none, or more than a figure tells apart."""
    if count == 0:
        raise UserError("scalings: give at least one")
    if count > MOST_CURVES:
        raise UserError(
            f"{count} curves are asked for, counting each kind of layer; a figure tells "
            f"{MOST_CURVES} apart"
        )


def _wanted(model: Model, asked: Asked, length: int) -> list[tuple[str, str, Scaling]]:
    """Name, kind and scaling."""
    if model.name and "scalings" not in asked.model_fields_set:
        earlier = {
            f"stage {number}: {_label(scaling)}": scaling
            for number, scaling in enumerate(model.stages)
            if scaling not in (*model.stages[:number], model.trained)
        }
        stages = [(name, scaling.type, scaling) for name, scaling in earlier.items()]
        return [*stages, ("trained", "trained", model.trained)]
    wanted = []
    for entry in asked.scalings:
        try:
            scaling = entry.at(length, model.window, model.trained)
        except ValueError as error:  # the factor that auto stands for does not fit its settings
            raise UserError(f"scalings: {entry.label}: {error}") from None
        wanted.append((entry.label, entry.type, scaling))
    return wanted


def _layers_alike(model: Model, scaling: Scaling) -> list[list[int]]:
    """Numbers of the layers that share all that a curve is made of."""
    alike: dict[Any, list[int]] = {}
    for layer in range(model.layers.count):
        geometry, own = model.layers.of(layer, scaling)
        _, trained = model.layers.of(layer, model.trained)
        settings = own.model_dump_json(), trained.model_dump_json()
        key = geometry, *settings, _of_its_own(model, layer), _sliding(model, layer)
        alike.setdefault(key, []).append(layer)
    return list(alike.values())


def _curve(
    model: Model, name: str, kind: str, scaling: Scaling, numbers: Sequence[int], length: int
) -> Curve:
    layer = numbers[0]
    geometry, own = model.layers.of(layer, scaling)
    _, trained = model.layers.of(layer, model.trained)
    if _of_its_own(model, layer):
        name, kind = _label(own), own.type
    # a query of a sliding window reads that far and no farther, in training and after it
    reach = _sliding(model, layer) or max(length, model.window)
    inv_freq, m = effective(own, geometry, length)
    pairs = Pairs(
        theta=geometry.inv_freq(),
        inv_freq=inv_freq,
        m=m,
        trained=effective(trained, geometry, model.window)[0],
        window=min(model.window, reach),
        length=min(length, reach),
    )
    return Curve(name, kind, own, geometry, pairs)


def _of_its_own(model: Model, layer: int) -> bool:
    pattern = model.layers.pattern
    return pattern[layer % len(pattern)].scaling is not None


def _sliding(model: Model, layer: int) -> int | None:
    return model.sliding[layer % len(model.sliding)]


def _numbers(layers: Sequence[int]) -> str:
    """The first few, which tell them from others: layers 0–2, 4–6, …"""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    shown = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    shown[2:] = ["…"] if len(shown) > 2 else []
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(shown)}"


def _label(scaling: Scaling) -> str:
    """Type and factor, as a sweep names its curves."""
    return ENTRIES[scaling.type].model_validate(scaling.model_dump()).label
