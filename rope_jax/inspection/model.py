"""The model to inspect: its rotary layers, training window and scalings.

Imports no jax.
"""

import math
from dataclasses import dataclass

from rope_jax.config.entries import ENTRIES
from rope_jax.config.inspection import InspectionConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.rope import RotaryGeometry, RotaryLayers, Scaling
from rope_jax.rope.strategies import NoScaling


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
        """Make the model of a training config, or of a bare geometry if there is none.

        UserError: the config's model does not rotate.
        """
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
        """The last stage's scaling."""
        return self.stages[-1]

    def overrides_scaling(self, layer: int) -> bool:
        """Return whether a layer has a scaling of its own, whatever the other layers use."""
        pattern = self.layers.pattern
        return pattern[layer % len(pattern)].scaling is not None

    def sliding_window(self, layer: int) -> int | None:
        """Return a layer's sliding attention window in tokens, or None."""
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


def short_number(value: float) -> str:
    """Format a number for reading: whole from 1,000 to 999,999, else with four digits."""
    if not math.isfinite(value):
        return "∞"
    if 1000 <= value < 999_999.5:
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e")
