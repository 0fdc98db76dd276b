"""What every scaling strategy is: frozen settings that return frequencies."""

from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rope_jax.rope.frequencies import Frequencies
from rope_jax.rope.geometry import RotaryGeometry

Factor = Annotated[
    float,
    Field(ge=1, allow_inf_nan=False, description="s, how many times longer the context becomes"),
]


class Scaling(BaseModel):
    """Settings of one strategy. The class docstring's first line is its line in every list."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: ClassVar[str]
    type: str

    @property
    def length_dependent(self) -> bool:
        """Whether a longer text changes the rotation of every key already in it."""
        return False

    def frequencies(self, geometry: RotaryGeometry, seq_len: Any = None) -> Frequencies:
        """The effective frequencies and m.

        seq_len: the text's length in tokens, for length-dependent strategies: None, an int, or
        a traced scalar or [batch] array. The others ignore it.
        Returns float32 leaves: inv_freq [d/2] in radians a token, its remainder, m [].
        """
        try:
            return Frequencies.from_float64(*self.scaled(geometry))
        except OverflowError:
            raise ValueError(
                f"type: {self.type} with these settings and base {geometry.base:g} exceeds "
                "what a float holds"
            ) from None

    def scaled(self, geometry: RotaryGeometry) -> tuple[np.ndarray, float]:
        """inv_freq, float64 [d/2], and m, computed on the host."""
        raise NotImplementedError(f"{type(self).__name__} has no formula")
