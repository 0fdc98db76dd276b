"""`mlp`: the feed-forward of a Llama, or without its gate that of a GPT."""

import functools
from collections.abc import Callable
from typing import Literal

import jax
from flax import nnx
from jaxtyping import Array, Float
from pydantic import Field

from rope_jax.blocks.base import (
    COLUMN_PARALLEL,
    ROW_PARALLEL,
    Auxiliary,
    DecoderSpec,
    FeedForward,
    Linear,
)
from rope_jax.kernels.gated import gated_feed_forward
from rope_jax.kernels.projections import has_kernels, projected

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu_squared": lambda x: jax.nn.relu(x) ** 2,
}
"""x·sigmoid(x); x·Φ(x) with the normal distribution's Φ, or its fit; max(x, 0)²."""


class MLP(FeedForward):
    """Two or three linear maps with an activation between them. width: that of the hidden layer."""

    class Config(FeedForward.Config):
        """down(activation(gate(x)) · up(x)), or without a gate down(activation(up(x)))."""

        type: Literal["mlp"] = "mlp"
        width: int | None = Field(None, gt=0, description="hidden width; null: intermediate_size")

        def build(self, spec: DecoderSpec, rngs: nnx.Rngs) -> "MLP":
            return MLP(spec, self.width or spec.intermediate_size, rngs)

    def __init__(self, spec: DecoderSpec, width: int, rngs: nnx.Rngs) -> None:
        self.spec = spec
        d, bias = spec.hidden_size, spec.mlp_bias
        # Gate and up stay separate: one fused matrix product is slower on a CPU.
        if spec.gated_mlp:
            self.gate_proj = Linear(spec, d, width, rngs, axes=COLUMN_PARALLEL, bias=bias)
        self.up_proj = Linear(spec, d, width, rngs, axes=COLUMN_PARALLEL, bias=bias)
        self.down_proj = Linear(spec, width, d, rngs, axes=ROW_PARALLEL, bias=bias)

    def __call__(self, x: Float[Array, "tokens D"]) -> tuple[Float[Array, "tokens D"], Auxiliary]:
        spec, activate = self.spec, ACTIVATIONS[self.spec.activation]
        if not spec.gated_mlp:
            return self.down_proj(activate(self.up_proj(x))), None
        if self._has_kernel(x):
            kernels = (p.factor for p in (self.gate_proj, self.up_proj, self.down_proj))
            y = gated_feed_forward(x.astype("float32"), *kernels, spec.low_precision)
            return projected(spec.mesh.sum_over_tensor(y.astype(x.dtype))), None
        # The backward pass computes the activation again: reading it back would take longer.
        gated = jax.checkpoint(lambda gate, up: activate(gate) * up)
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x))), None

    def _has_kernel(self, x: Float[Array, "tokens D"]) -> bool:
        """Whether our kernel for CPUs computes it: a Llama's, with an even width if rounded."""
        spec, w_up = self.spec, self.up_proj.factor
        if spec.activation != "silu" or spec.mlp_bias:
            return False
        # the width on this device, which is odd where a mesh splits it so
        if spec.low_precision and w_up.shape[1] % 2:
            return False
        return has_kernels(x.astype("float32"), w_up, low_precision=spec.low_precision)
