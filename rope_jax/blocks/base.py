"""The base classes of a decoder layer's blocks. Imports no jax until a model is built.

Shapes: tokens: B·T, the windows laid end to end; D model, F mlp. `model` is a `ModelConfig`.
"""

import math
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

__all__ = [
    "Block",
    "FeedForward",
    "Norm",
    "Parameter",
    "Parameters",
    "SelfAttention",
    "Sharding",
    "column_parallel",
    "linear",
    "row_parallel",
]

FSDP, TENSOR = "fsdp", "tensor"
"""The mesh axes that split parameters: each copy of them, and heads or hidden layer."""


class Sharding(NamedTuple):
    """How a parameter is split, without its axis of layers.

    axes:       the mesh axis that splits each of its axes, if any.
    added_once: a bias that is added to a sum over "tensor", so only one device may add it.
    """

    axes: tuple[str | None, ...] = ()
    added_once: bool = False

    def axis_over(self, mesh_axis: str) -> int | None:
        """Return which of the parameter's axes is split over a mesh axis, if any."""
        return self.axes.index(mesh_axis) if mesh_axis in self.axes else None


class Parameter(NamedTuple):
    """Shape of one parameter, and its initial value: normal with the model's initializer_range.

    in_float32: whatever the type of the model's weights.
    """

    shape: tuple[int, ...]
    initial: Literal["normal", "zeros", "ones"] = "normal"
    in_float32: bool = False


class Norm(NamedTuple):
    """A norm of the model's kind over a last axis of `width`.

    heads: how many heads, on the axis before, have weights of their own, but no biases; None: all
        share them, and every device has all of them.
    epsilon: None: the model's.
    """

    width: int
    heads: int | None = None
    epsilon: float | None = None


#: The parameters of a block, or of a part of it, by name.
Parameters = dict[str, Any]


def linear(inputs: int, outputs: int, bias: bool = False) -> Parameters:
    """Return the parameters of a linear map."""
    kernel = {"kernel": Parameter((inputs, outputs))}
    return kernel | ({"bias": Parameter((outputs,), "zeros")} if bias else {})


def column_parallel(*names: str) -> dict[str, Sharding]:
    """Return the sharding of linear maps whose outputs are split over "tensor"."""
    kernels = {f"{name}.kernel": Sharding((FSDP, TENSOR)) for name in names}
    return kernels | {f"{name}.bias": Sharding((TENSOR,)) for name in names}


def row_parallel(*names: str) -> dict[str, Sharding]:
    """Return the sharding of linear maps whose inputs are: each device has a share of the sums."""
    kernels = {f"{name}.kernel": Sharding((TENSOR, FSDP)) for name in names}
    return kernels | {f"{name}.bias": Sharding((None,), added_once=True) for name in names}


class Block(BaseModel):
    """A part of a decoder layer: its settings, its parameters, and what it computes.

    The first line of a subclass's docstring is its entry in the documentation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    slot: ClassVar[str]
    """Its name among a layer's parameters."""
    sharding: ClassVar[dict[str, Sharding]] = {}
    """How each parameter is split, by names joined with dots; one that is not here is not."""

    def check(self, model: Any) -> None:
        """ValueError, which begins with a key, if other fields of the model do not fit."""

    def parameters(self, model: Any) -> Parameters:
        """Return a tree of `Parameter` and `Norm`. The order decides the random numbers."""
        raise NotImplementedError

    def flops_per_token(self, model: Any) -> int:
        """FLOPs of one token's forward pass, without pairs: by default, 2 for each matrix entry."""

        def entries(parameters: Parameters) -> int:
            kinds = parameters.values()
            matrices = [x for x in kinds if isinstance(x, Parameter) and len(x.shape) > 1]
            inner = sum(entries(x) for x in kinds if isinstance(x, dict))
            return inner + sum(math.prod(x.shape) for x in matrices)

        return 2 * entries(self.parameters(model))

    def flops_per_pair(self, model: Any) -> int:
        """FLOPs of the forward pass for each pair of a query and a key that it sees."""
        return 0


class SelfAttention(Block):
    """How the tokens of a window read each other."""

    slot: ClassVar[str] = "self_attn"
    sharding: ClassVar[dict[str, Sharding]] = {
        **row_parallel("o_proj"),
        "sinks": Sharding((TENSOR,)),
    }

    type: str

    def head_dim(self, model: Any) -> int:
        """Return H, the width of a head's queries and keys."""
        raise NotImplementedError

    def value_dim(self, model: Any) -> int:
        """Return V, the width of a head's values."""
        return self.head_dim(model)

    def rotary_dim(self, model: Any) -> int:
        """Return how many dimensions of a head may be rotated, the first ones."""
        return self.head_dim(model)

    def flops_per_pair(self, model: Any) -> int:
        """The products of width H and V in each head; none if sums replace the pairs."""
        widths = self.head_dim(model) + self.value_dim(model)
        return 2 * model.num_attention_heads * widths if model.backend.is_softmax else 0

    def outputs(self, model: Any) -> Parameters:
        """Return the parameters after the softmax, and in it."""
        heads = model.num_attention_heads
        out = linear(heads * self.value_dim(model), model.hidden_size, model.o_bias)
        return {"o_proj": out} | ({"sinks": Parameter((heads,))} if model.attention_sinks else {})

    def apply(self, model: Any, params: Any, x: Any, layer: Any) -> Any:
        """Attend from the computed tokens [tokens, D] to all tokens of their windows."""
        q, k, v = self.heads(model, params, x, layer)
        out = layer.attend(q, k, v, params["sinks"] if model.attention_sinks else None)
        return layer.row_parallel(out.reshape(out.shape[0] * out.shape[1], -1), params["o_proj"])

    def heads(self, model: Any, params: Any, x: Any, layer: Any) -> tuple[Any, Any, Any]:
        """Return queries [B, T, N, H], keys [B, S, K, H] and values [B, S, K, V], not rotated."""
        raise NotImplementedError


class FeedForward(Block):
    """What a layer computes of each token by itself, between attention and the next layer."""

    slot: ClassVar[str] = "mlp"

    type: str

    def numbers_per_token(self, model: Any) -> int:
        """Estimate how many numbers of a token exist at once besides input and output."""
        return self.flops_per_token(model) // (2 * model.hidden_size)  # results of each product

    def hidden_sizes(self, model: Any) -> dict[str, int]:
        """Return what the mesh axis "tensor" has to divide, by its key in the model's config."""
        return {"intermediate_size": model.intermediate_size}

    def apply(self, model: Any, params: Any, x: Any, layer: Any) -> tuple[Any, Any]:
        """Return the output [tokens, D], and an auxiliary loss that training adds; None: none.

        params: the declared tree; params["up_proj"]["kernel"] is an array, of which a mesh leaves
            this device its shard, and params["norm"](x) applies a norm.
        layer:  a `LayerContext`: `column_parallel(x, params["up_proj"])` and `row_parallel`
            multiply by this device's shards; the latter sums over devices. `linear` is for
            weights that are not split.

        The auxiliary loss is the mean over these tokens of a float32 number, times its weight.
        """
        raise NotImplementedError
