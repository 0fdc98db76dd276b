"""Which curves to show: each requested scaling in each kind of layer. Imports no jax."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rope_jax.config.entries import ENTRIES
from rope_jax.config.inspection import InspectionConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.inspection.output import short_number
from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.pairs import Pairs, exact_frequencies
from rope_jax.rope.strategies import NoScaling

MAX_CURVES = 12  # a reader cannot tell more apart in a figure


@dataclass(frozen=True)
class InspectedModel:
    """Rotary layers and how they were trained. A bare geometry is one layer without scaling.

    window:  L, tokens of the last training stage, whose scaling is `trained`.
    stages:  the scaling of each training stage.
    sliding: the layers' sliding attention windows, a pattern that repeats; None: the layer reads
             the whole text.
    """

    name: str
    layers: RotaryLayers
    window: int
    stages: tuple[Scaling, ...] = (NoScaling(),)
    sliding: tuple[int | None, ...] = (None,)

    @classmethod
    def from_config(cls, asked: InspectionConfig, training: Config | None) -> "InspectedModel":
        """Make the model of a training config, which must rotate, or of a bare geometry."""
        if training is None:
            geometry = RotaryGeometry(asked.rotary_dim, asked.base, asked.train_length)
            return cls("", RotaryLayers(geometry), asked.train_length)
        position = training.model.position.type
        if not training.model.position.is_rotary:
            raise UserError(
                f"model.position.type: {position} rotates nothing, so there is nothing to show"
            )
        stages = tuple(training.stage_scaling(stage) for stage in range(len(training.stages)))
        window = training.stages[-1].seq_len
        layers, sliding = training.rotary_layers, training.sliding_windows
        return cls(training.name, layers, window, stages, sliding)

    @property
    def trained(self) -> Scaling:
        return self.stages[-1]

    def overrides_scaling(self, layer: int) -> bool:
        """Return whether a layer has a scaling of its own, whatever the other layers use."""
        pattern = self.layers.pattern
        return pattern[layer % len(pattern)].scaling is not None

    def sliding_window(self, layer: int) -> int | None:
        return self.sliding[layer % len(self.sliding)]

    def title(self) -> str:
        """Describe the model in one line."""
        layers = self.layers.per_layer(NoScaling())
        bases = dict.fromkeys(short_number(geometry.base) for geometry, _ in layers)
        name = f"{self.name}: " if self.name else ""
        scaling = "" if self.trained.type == "none" else f" with {scaling_label(self.trained)}"
        return (
            f"{name}d {self.layers.geometry.rotary_dim}, base {' and '.join(bases)}, "
            f"trained at {self.window:,} tokens{scaling}"
        )


def scaling_label(scaling: Scaling) -> str:
    """Return the label under which a sweep shows a scaling."""
    return ENTRIES[scaling.type].model_validate(scaling.model_dump()).label


@dataclass(frozen=True)
class Curve:
    """One scaling in a group of layers that are alike; kind: its type, or "trained"."""

    name: str
    kind: str
    scaling: Scaling
    geometry: RotaryGeometry
    pairs: Pairs


_Request = tuple[str, str, Scaling]
"""A curve's name, its kind, and the scaling to show."""


def make_curves(model: InspectedModel, asked: InspectionConfig, length: int) -> list[Curve]:
    """Return one curve per requested scaling, or training stage, and kind of layer.

    Layers that override the scaling appear once, because no request changes them. length: n, tokens
    in the text. UserError: a scaling does not fit the model.
    """
    curves: dict[str, Curve] = {}
    for name, kind, scaling in _requests(model, asked, length):
        try:
            groups = _group_alike_layers(model, scaling)
            for layers in groups:
                curve = _make_curve(model, (name, kind, scaling), layers[0], length)
                if len(groups) > 1:
                    curve = replace(curve, name=f"{curve.name} ({_layer_numbers(layers)})")
                curves[curve.name] = curve
        except ValueError as error:  # the message names a setting
            raise UserError(f"scalings: {name}: {error}") from None
    return list(curves.values())


def check_curve_count(count: int) -> None:
    """Raise a UserError if there are no curves, or too many for one figure."""
    if count == 0:
        raise UserError("scalings: give at least one")
    if count > MAX_CURVES:
        raise UserError(
            f"there are {count} curves, counting each kind of layer; a figure shows "
            f"at most {MAX_CURVES}"
        )


def _requests(model: InspectedModel, asked: InspectionConfig, length: int) -> list[_Request]:
    if model.name and "scalings" not in asked.model_fields_set:
        earlier = {
            f"stage {number}: {scaling_label(scaling)}": scaling
            for number, scaling in enumerate(model.stages)
            if scaling not in (*model.stages[:number], model.trained)
        }
        stages = [(name, scaling.type, scaling) for name, scaling in earlier.items()]
        return [*stages, ("trained", "trained", model.trained)]
    requests: list[_Request] = []
    for entry in asked.scalings:
        try:
            scaling = entry.at(length, model.window, model.trained)
        except ValueError as error:  # the factor that `auto` stands for does not fit
            raise UserError(f"scalings: {entry.label}: {error}") from None
        requests.append((entry.label, entry.type, scaling))
    return requests


def _group_alike_layers(model: InspectedModel, scaling: Scaling) -> list[list[int]]:
    """Return groups of layer numbers whose layers share everything a curve depends on."""
    groups: dict[Any, list[int]] = {}
    for layer in range(model.layers.count):
        geometry, own = model.layers.for_layer(layer, scaling)
        _, trained = model.layers.for_layer(layer, model.trained)
        settings = own.model_dump_json(), trained.model_dump_json()
        overrides, sliding = model.overrides_scaling(layer), model.sliding_window(layer)
        groups.setdefault((geometry, *settings, overrides, sliding), []).append(layer)
    return list(groups.values())


def _make_curve(model: InspectedModel, request: _Request, layer: int, length: int) -> Curve:
    name, kind, scaling = request
    geometry, own = model.layers.for_layer(layer, scaling)
    _, trained = model.layers.for_layer(layer, model.trained)
    if model.overrides_scaling(layer):
        name, kind = scaling_label(own), own.type
    # with a sliding window, a query never reads farther than that, in training or afterwards
    reach = model.sliding_window(layer) or max(length, model.window)
    inv_freq, m = exact_frequencies(own, geometry, length)
    pairs = Pairs(
        theta=geometry.inv_freq(),
        inv_freq=inv_freq,
        m=m,
        trained=exact_frequencies(trained, geometry, model.window)[0],
        window=min(model.window, reach),
        length=min(length, reach),
    )
    return Curve(name, kind, own, geometry, pairs)


def _layer_numbers(layers: Sequence[int]) -> str:
    """Format layer numbers as at most two ranges, which identify the group: 0–2, 4–6, …"""
    # layers in a row have the same difference to their place in the list
    alike = itertools.groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])
    runs = [[layer for _, layer in pairs] for _, pairs in alike]
    shown = [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    shown[2:] = ["…"] if len(shown) > 2 else []
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(shown)}"
