"""Schema of the optimizer. Imports no jax."""

from typing import Annotated, Literal

from pydantic import Field

from rope_jax.config.types import Fraction, Frozen, Moderate, NonNegativeInt, PositiveFloat


class OptimConfig(Frozen):
    """AdamW and its learning rate."""

    learning_rate: Moderate = Field(3e-3, description="peak learning rate")
    schedule: Literal["cosine", "linear", "wsd"] = Field(
        "cosine",
        description="decay after warm-up; wsd: constant at first, with a linear decay at the end",
    )
    warmup_steps: NonNegativeInt | None = Field(
        None, description="steps of linear warm-up from 0; null: a tenth of the schedule's steps"
    )
    final_lr_fraction: Fraction = Field(
        0.1, description="last learning rate, as a fraction of the peak"
    )
    decay_fraction: Fraction = Field(
        0.2, description="wsd: fraction of the steps after warm-up that decay"
    )
    weight_decay: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = Field(
        0.1, description="weight decay of matrices; norms and embeddings have none"
    )
    b1: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="decay rate of AdamW's first moment"
    )
    b2: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.95, description="decay rate of AdamW's second moment"
    )
    eps: Moderate = Field(1e-8, description="AdamW's epsilon")
    clip_norm: PositiveFloat = Field(1.0, description="largest global norm of the gradient")

    def warmup(self, steps: int) -> int:
        """Return the steps of warm-up of a schedule of so many steps."""
        return steps // 10 if self.warmup_steps is None else self.warmup_steps
