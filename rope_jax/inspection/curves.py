"""Which curves to show: each requested scaling in each kind of layer."""

from collections.abc import Iterator
from dataclasses import dataclass

from rope_jax.config.entries import ENTRIES, Trained
from rope_jax.config.inspection import ScalingConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import short_number
from rope_jax.errors import UserError, errors_in
from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.pairs import Pairwise, exact_frequencies, turns, unseen_share, wavelengths
from rope_jax.rope.strategies import NoScaling

MAX_CURVES = 12  # a reader cannot tell more apart in a figure


@dataclass(frozen=True)
class InspectedModel:
    """Rotary layers and how they were trained. A bare geometry is one layer without scaling.

    window:  L, tokens of the last training stage, whose scaling is `trained`.
    stages:  the scaling of each training stage.
    sliding: the layers' sliding attention windows or chunks, a pattern that repeats; None: the
             layer reads the whole text.
    """

    name: str
    layers: RotaryLayers
    window: int
    stages: tuple[Scaling, ...] = (NoScaling(),)
    sliding: tuple[int | None, ...] = (None,)

    @classmethod
    def from_config(cls, asked: ScalingConfig, training: TrainingConfig | None) -> "InspectedModel":
        """Make the model of a training config, which must rotate, or of a bare geometry."""
        if training is None:
            geometry = RotaryGeometry(asked.rotary_dim, asked.base, asked.train_length)
            return cls("", RotaryLayers(geometry), asked.train_length)
        position = training.model.position
        if not position.is_rotary:
            raise UserError(
                f"model.position.type: {position.type} rotates nothing, so there is nothing to show"
            )
        stages = tuple(training.stage_scaling(stage) for stage in range(len(training.stages)))
        window = training.stages[-1].seq_len
        sliding = tuple(layer.sliding_window or layer.attention_chunk for layer in training.pattern)
        return cls(training.name, training.rotary_layers, window, stages, sliding)

    @property
    def trained(self) -> Scaling:
        return self.stages[-1]

    def title(self) -> str:
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
    """One scaling in a group of layers that are alike, pair by pair.

    kind:     the scaling's type, or "trained".
    inv_freq: θ' for a text of `length` tokens; m: its attention factor.
    turns:    in the training window. scale: θ'/θ.
    unseen:   the share of the circle that the text covers but training did not.
    """

    name: str
    kind: str
    scaling: Scaling
    geometry: RotaryGeometry
    length: int
    m: float
    inv_freq: Pairwise
    wavelengths: Pairwise
    turns: Pairwise
    scale: Pairwise
    unseen: Pairwise


def make_curves(model: InspectedModel, asked: ScalingConfig, length: int) -> list[Curve]:
    """Return one curve per requested scaling, or training stage, and kind of layer.

    Layers that override the scaling appear once, because no request changes them. length: n, tokens
    in the text. UserError: a scaling does not fit the model, or a figure cannot show as many.
    """
    curves: dict[str, Curve] = {}
    for name, kind, scaling in _requests(model, asked, length):
        with errors_in(f"scalings: {name}: ", UserError):  # the message names a setting
            for curve in _curves_of(model, name, kind, scaling, length):
                curves[curve.name] = curve
    if not 1 <= len(curves) <= MAX_CURVES:
        raise UserError(
            f"scalings: a figure shows 1 to {MAX_CURVES} curves, counting each kind of layer, "
            f"not {len(curves)}"
        )
    return list(curves.values())


def _curves_of(
    model: InspectedModel, name: str, kind: str, scaling: Scaling, length: int
) -> Iterator[Curve]:
    """Yield the curve of a scaling in each kind of layer."""
    layers, sliding = model.layers, model.sliding
    alike: dict[tuple[RotaryGeometry, Scaling, Scaling, int | None], list[int]] = {}
    for i in range(layers.count):
        _, trained = layers.for_layer(i, model.trained)
        key = (*layers.for_layer(i, scaling), trained, sliding[i % len(sliding)])
        alike.setdefault(key, []).append(i)
    for (geometry, applied, trained, attended), numbers in alike.items():
        shown, shown_kind = name, kind
        if layers.pattern[numbers[0] % len(layers.pattern)].scaling is not None:
            shown, shown_kind = scaling_label(applied), applied.type
        if len(alike) > 1:
            few = ", ".join([*map(str, numbers[:4]), *["…"] * (len(numbers) > 4)])
            shown += f" (layer{'s' * (len(numbers) > 1)} {few})"
        inv_freq, m = exact_frequencies(applied, geometry, length)
        seen, _ = exact_frequencies(trained, geometry, model.window)
        window, reach = (min(n, attended or n) for n in (model.window, length))
        yield Curve(
            shown,
            shown_kind,
            applied,
            geometry,
            reach,
            m,
            inv_freq,
            wavelengths=wavelengths(inv_freq),
            turns=turns(inv_freq, window),
            scale=inv_freq / geometry.inv_freq(),
            unseen=unseen_share(inv_freq, reach, seen, window),
        )


def _requests(
    model: InspectedModel, asked: ScalingConfig, length: int
) -> Iterator[tuple[str, str, Scaling]]:
    """Yield a name, a kind and a scaling for each request."""
    if model.name and "scalings" not in asked.model_fields_set:
        for number, scaling in enumerate(model.stages):
            if scaling not in (*model.stages[:number], model.trained):
                yield f"stage {number}: {scaling_label(scaling)}", scaling.type, scaling
        yield "trained", "trained", model.trained
        return
    train_length = model.layers.geometry.train_length
    trained = Trained(model.window, model.trained, None, train_length)
    for entry in (each.resolved(model.trained) for each in asked.scalings):
        with errors_in(f"scalings: {entry.label}: ", UserError):  # auto's factor may not fit
            scaling = entry.at(length, trained)
        yield entry.label, entry.type, scaling
