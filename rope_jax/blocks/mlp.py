"""`mlp`: the feed-forward of a Llama, or without its gate that of a GPT."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from rope_jax.blocks.base import (
    FeedForward,
    Parameters,
    Sharding,
    column_parallel,
    linear,
    row_parallel,
)


class MLP(FeedForward):
    """down(activation(gate(x)) · up(x)), or without a gate down(activation(up(x)))."""

    sharding: ClassVar[dict[str, Sharding]] = {
        **column_parallel("gate_proj", "up_proj"),
        **row_parallel("down_proj"),
    }
    type: Literal["mlp"] = "mlp"

    def parameters(self, model: Any) -> Parameters:
        d, f, bias = model.hidden_size, model.intermediate_size, model.mlp_bias
        # Gate and up stay separate: one fused matrix product is slower on a CPU.
        gate = {"gate_proj": linear(d, f, bias)} if model.gated_mlp else {}
        return gate | {"up_proj": linear(d, f, bias), "down_proj": linear(f, d, bias)}

    def apply(self, model: Any, params: Any, x: Any, layer: Any) -> tuple[Any, None]:
        import jax

        from rope_jax.kernels.projections import has_kernels

        low_precision, wide = layer.low_precision, x.astype("float32")
        is_llamas = model.gated_mlp and model.activation == "silu" and not model.mlp_bias
        w_up = layer.factor(params["up_proj"]["kernel"])
        # the width on this device, which is odd where a mesh splits it so
        in_pairs = not low_precision or w_up.shape[1] % 2 == 0
        if is_llamas and in_pairs and has_kernels(wide, w_up, low_precision=low_precision):
            from rope_jax.kernels.gated import gated_feed_forward

            w_gate, w_down = (
                layer.factor(params[name]["kernel"]) for name in ("gate_proj", "down_proj")
            )
            y = gated_feed_forward(wide, w_gate, w_up, w_down, low_precision)
            return layer.summed(y.astype(x.dtype)), None
        activate = activation(model.activation)
        if model.gated_mlp:
            # The backward pass computes the activation again: reading it back would take longer.
            gated = jax.checkpoint(lambda gate, up: activate(gate) * up)
            gate = layer.column_parallel(x, params["gate_proj"])
            hidden = gated(gate, layer.column_parallel(x, params["up_proj"]))
        else:
            hidden = activate(layer.column_parallel(x, params["up_proj"]))
        return layer.row_parallel(hidden, params["down_proj"]), None


def activation(name: str) -> Callable[[Any], Any]:
    """Return x·sigmoid(x); x·Φ(x) with the normal distribution's Φ, or its fit; or max(x, 0)²."""
    import functools

    import jax

    activations: dict[str, Callable[[Any], Any]] = {
        "silu": jax.nn.silu,
        "gelu": functools.partial(jax.nn.gelu, approximate=False),
        "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
        "relu_squared": lambda x: jax.nn.relu(x) ** 2,
    }
    return activations[name]
