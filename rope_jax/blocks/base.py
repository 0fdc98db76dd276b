"""What the blocks of a decoder layer are made of: what they share, and linear maps.

Shapes: tokens: B·S, the windows laid end to end; D model.
"""

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal

from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rope_jax.attention.backends import BACKENDS, Backend
from rope_jax.collectives import EVERYWHERE, FSDP, SINGLE_DEVICE, TENSOR, Collectives, Sharding
from rope_jax.kernels.projections import project, projected
from rope_jax.positions.encodings import Encoding, RoPE
from rope_jax.rope.geometry import Layout
from rope_jax.rope.settings import Settings

__all__ = [
    "COLUMN_PARALLEL",
    "ROW_PARALLEL",
    "Auxiliary",
    "BlockConfig",
    "DecoderSpec",
    "FeedForward",
    "Linear",
    "parameter",
]

#: What training adds to the mean loss; None if a feed-forward has no such term.
Auxiliary = Float[Array, ""] | None

COLUMN_PARALLEL, ROW_PARALLEL = (FSDP, TENSOR), (TENSOR, FSDP)
"""The mesh axes that split the inputs and the outputs of a linear map."""

_ROPE = RoPE()
NormName = Literal[
    "rms_norm",
    "rms_norm_plus_one",
    "layer_norm",
    "layer_norm_plus_one",
    "layer_norm_no_bias",
    "layer_norm_plain",
]
NormPlacement = Literal["before", "after", "both", "shared"]
ActivationName = Literal["silu", "gelu", "gelu_tanh", "relu_squared"]
FloatName = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class DecoderSpec:
    """What all layers of a decoder share: sizes, numerics, encoding, attention and mesh.

    The names are those of `ModelConfig`, which explains them; the defaults describe a Llama.
    """

    hidden_size: int = 128
    intermediate_size: int = 352
    num_attention_heads: int = 4
    kv_heads: int = 4
    head_dim: int = 32
    norm: NormName = "rms_norm"
    norm_placement: NormPlacement = "before"
    rms_norm_eps: float = 1e-5
    qk_norm: bool | Literal["all_heads", "by_head", "rotated", "after_rotation"] = False
    clip_qkv: float | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    activation: ActivationName = "silu"
    gated_mlp: bool = True
    parallel_residual: bool = False
    residual_multiplier: float = 1.0
    per_layer_width: int | None = None
    layer_scale: bool = False
    attention_softcap: float | None = None
    attention_sinks: bool = False
    initializer_range: float = 0.02
    dtype: FloatName = "float32"
    product_dtype: str | None = None
    param_dtype: FloatName = "float32"
    attention: str = "xla"
    encoding: Encoding = _ROPE
    layout: Layout = "half"
    mesh: Collectives = SINGLE_DEVICE

    @property
    def backend(self) -> Backend:
        """What computes attention."""
        return BACKENDS[self.attention]

    @property
    def low_precision(self) -> bool:
        """Whether the factors of matrix products are rounded to bfloat16."""
        return self.product_dtype == "bfloat16"

    @property
    def factor_dtype(self) -> str:
        """Type of activations in products with weights, and of weights as devices gather them."""
        return "float32" if self.product_dtype == "float32" else self.dtype


class BlockConfig(Settings):
    """Settings of a block, nested in the module that they build."""

    def build(self, spec: DecoderSpec, rngs: nnx.Rngs) -> nnx.Module:
        """Return the module with fresh parameters. Their order decides the random numbers."""
        raise NotImplementedError

    def flops_per_token(self, spec: DecoderSpec) -> int:
        """FLOPs of one token's forward pass, without pairs: by default, 2 for each weight."""
        return 2 * weights_in(self.build, spec)


@functools.lru_cache
def weights_in(build: Callable[..., nnx.Module], spec: DecoderSpec, *about: Hashable) -> int:
    """Return how many numbers the matrices have of a module, build(spec, rngs, *about)."""
    module = nnx.eval_shape(lambda: build(spec, nnx.Rngs(0), *about))
    parameters = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return sum(x.get_value().size for path, x in parameters if path[-1] == "kernel")


def parameter(
    spec: DecoderSpec,
    shape: tuple[int, ...],
    rngs: nnx.Rngs,
    *,
    initial: float | None = None,
    dtype: DTypeLike | None = None,
    sharding: Sharding = EVERYWHERE,
) -> nnx.Param[Array]:
    """Return a fresh parameter, normal with the model's initializer_range, or `initial`.

    dtype: None: the model's param_dtype.
    """
    draw = nnx.initializers.normal(spec.initializer_range)
    if initial is not None:
        draw = nnx.initializers.constant(initial)
    return nnx.Param(draw(rngs.params(), shape, dtype or spec.param_dtype), split=sharding)


class Linear(nnx.Module):
    """x·kernel + bias, with the weights that this device has.

    Where "tensor" splits the inputs, the devices' shares are summed, and one of them adds the bias.

    axes:  the mesh axes that split inputs and outputs.
    stack: how many such maps, one for each expert, are in front; `__call__` is for one alone.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        inputs: int,
        outputs: int,
        rngs: nnx.Rngs,
        *,
        axes: tuple[str | None, str | None] = (None, None),
        bias: bool = False,
        stack: int | None = None,
    ) -> None:
        self.spec, self.axes = spec, axes
        front, unsplit = ((), ()) if stack is None else ((stack,), (None,))
        self.kernel = parameter(
            spec, (*front, inputs, outputs), rngs, sharding=Sharding((*unsplit, *axes))
        )
        self.bias: nnx.Param[Array] | None = nnx.data(None)
        if bias:
            over = TENSOR if axes[1] == TENSOR else None
            sharding = Sharding((*unsplit, over), added_once=axes[0] == TENSOR)
            self.bias = parameter(spec, (*front, outputs), rngs, initial=0.0, sharding=sharding)

    def __call__(self, x: Float[Array, "tokens _"]) -> Float[Array, "tokens _"]:
        spec = self.spec
        y = project(x.astype(spec.factor_dtype), self.factor, spec.low_precision)
        y = y.astype(spec.dtype)
        if self.bias is not None:
            y = y + self.bias[...].astype(spec.dtype)[None]
        if self.axes[0] == TENSOR:
            y = spec.mesh.sum_over_tensor(y)
        return projected(y) if TENSOR in self.axes else y

    @property
    def factor(self) -> Float[Array, "..."]:
        """The kernel as products take it; those of low precision round it themselves."""
        return self.kernel[...].astype("float32" if self.spec.product_dtype else self.spec.dtype)


class FeedForward(nnx.Module):
    """What a layer computes of each token by itself, between attention and the next layer."""

    class Config(BlockConfig):
        """Settings of a feed-forward. The docstring is its entry in the documentation."""

        def build(self, spec: DecoderSpec, rngs: nnx.Rngs) -> "FeedForward":
            raise NotImplementedError

        def activation_floats_per_token(self, spec: DecoderSpec) -> int:
            """Estimate how many numbers of a token exist at once besides input and output."""
            return self.flops_per_token(spec) // (2 * spec.hidden_size)  # results of each product

        def tensor_sizes(self, spec: DecoderSpec) -> dict[str, int]:
            """Return what the mesh axis "tensor" has to divide, by its key in the config."""
            return {"intermediate_size": spec.intermediate_size}

    def __call__(self, x: Float[Array, "tokens D"]) -> tuple[Float[Array, "tokens D"], Auxiliary]:
        """Return the output, and an auxiliary loss that training adds, or None.

        The auxiliary loss is a float32 scalar, times its weight, and the same on all devices: what
        depends on tokens is averaged by `spec.mesh.mean_over_tokens`.
        """
        raise NotImplementedError
