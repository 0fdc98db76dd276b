"""Which curves to show: each requested scaling in each kind of layer."""

from dataclasses import dataclass

from rope_jax.config.entries import ENTRIES
from rope_jax.config.inspection import ScalingConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError, errors_in
from rope_jax.inspection.output import short_number
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
        position = training.model.position.type
        if not training.model.position.is_rotary:
            raise UserError(
                f"model.position.type: {position} rotates nothing, so there is nothing to show"
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
    in the text. UserError: a scaling does not fit the model.
    """
    layers, sliding = model.layers, model.sliding
    curves: dict[str, Curve] = {}
    for name, kind, scaling in _requests(model, asked, length):
        with errors_in(f"scalings: {name}: ", UserError):  # the message names a setting
            alike: dict[tuple[RotaryGeometry, Scaling, Scaling, int | None], list[int]] = {}
            for i in range(layers.count):
                _, trained = layers.for_layer(i, model.trained)
                key = (*layers.for_layer(i, scaling), trained, sliding[i % len(sliding)])
                alike.setdefault(key, []).append(i)
            for (geometry, own, trained, attended), numbers in alike.items():
                shown, shown_kind = name, kind
                if layers.pattern[numbers[0] % len(layers.pattern)].scaling is not None:
                    shown, shown_kind = scaling_label(own), own.type
                if len(alike) > 1:
                    few = ", ".join([*map(str, numbers[:4]), *["…"] * (len(numbers) > 4)])
                    shown += f" (layer{'s' * (len(numbers) > 1)} {few})"
                inv_freq, m = exact_frequencies(own, geometry, length)
                seen, _ = exact_frequencies(trained, geometry, model.window)
                window, reach = (min(n, attended or n) for n in (model.window, length))
                curves[shown] = Curve(
                    shown,
                    shown_kind,
                    own,
                    geometry,
                    reach,
                    m,
                    inv_freq,
                    wavelengths=wavelengths(inv_freq),
                    turns=turns(inv_freq, window),
                    scale=inv_freq / geometry.inv_freq(),
                    unseen=unseen_share(inv_freq, reach, seen, window),
                )
    return list(curves.values())


def check_curve_count(count: int) -> None:
    """UserError if there are no curves, or too many for one figure."""
    if not 1 <= count <= MAX_CURVES:
        raise UserError(
            f"scalings: a figure shows 1 to {MAX_CURVES} curves, counting each kind of layer, "
            f"not {count}"
        )


def _requests(
    model: InspectedModel, asked: ScalingConfig, length: int
) -> list[tuple[str, str, Scaling]]:
    """Return a name, a kind and a scaling for each request."""
    if model.name and "scalings" not in asked.model_fields_set:
        stages = [
            (f"stage {number}: {scaling_label(scaling)}", scaling.type, scaling)
            for number, scaling in enumerate(model.stages)
            if scaling not in (*model.stages[:number], model.trained)
        ]
        return [*stages, ("trained", "trained", model.trained)]
    requests = []
    for entry in asked.scalings:
        with errors_in(f"scalings: {entry.label}: ", UserError):  # auto's factor may not fit
            scaling = entry.at(length, model.window, model.trained)
        requests.append((entry.label, entry.type, scaling))
    return requests
