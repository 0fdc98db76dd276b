"""A decoder layer: attention and feed-forward on the residual stream, as a Flax NNX module.

Shapes: B batch, S tokens per window, T of them computed, D model; tokens: B·S, the windows laid end
to end; computed: B·T, the last T tokens of every window.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from rope_jax.blocks.base import Auxiliary, DecoderSpec, Linear, parameter
from rope_jax.blocks.mixer import LayerInputs
from rope_jax.blocks.mlp import ACTIVATIONS
from rope_jax.blocks.norms import norm
from rope_jax.collectives import FSDP
from rope_jax.model.spec import LayerKind


class DecoderLayer(nnx.Module):
    """Attention and feed-forward, each multiplied and added to the residual stream.

    Norms are named as in Hugging Face's models: `post_attention_layernorm` is before the
    feed-forward in a Llama (placement before), and of attention's output in OLMo 2 and Gemma 2.
    Where one norm is shared, it is the `input_layernorm`.
    """

    def __init__(self, spec: DecoderSpec, kind: LayerKind, rngs: nnx.Rngs) -> None:
        self.spec, placement, width = spec, spec.norm_placement, spec.hidden_size
        if placement != "after":
            self.input_layernorm = norm(spec, width, rngs)
        self.self_attn = kind.mixer.build(spec, rngs, kind.span)
        if placement != "shared":
            self.post_attention_layernorm = norm(spec, width, rngs)
        if placement == "both":
            self.pre_feedforward_layernorm = norm(spec, width, rngs)
        self.mlp = kind.feed_forward.build(spec, rngs)
        if placement in ("after", "both"):
            self.post_feedforward_layernorm = norm(spec, width, rngs)
        if (inner := spec.per_layer_width) is not None:
            self.per_layer_input_gate = Linear(spec, width, inner, rngs, axes=(FSDP, None))
            self.per_layer_projection = Linear(spec, inner, width, rngs, axes=(None, FSDP))
            self.post_per_layer_input_norm = norm(spec, width, rngs)
        self.layer_scalar: nnx.Param[Array] | None = nnx.data(None)
        if spec.layer_scale:
            self.layer_scalar = parameter(spec, (1,), rngs, initial=1.0)

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs
    ) -> tuple[Float[Array, "computed D"], Auxiliary]:
        """Return the residual stream, and the feed-forward's auxiliary loss or None."""
        placement, factor = self.spec.norm_placement, self.spec.residual_multiplier
        normed = x if placement == "after" else self.input_layernorm(x)
        y, x = self.self_attn(normed, inputs), inputs.computed(x)
        if placement == "shared":
            x, normed = x + multiplied(y, factor), inputs.computed(normed)
        elif placement == "before":
            before, x = x, x + multiplied(y, factor)
            normed = self.post_attention_layernorm(before if self.spec.parallel_residual else x)
        else:
            x = x + multiplied(self.post_attention_layernorm(y), factor)
            normed = x if placement == "after" else self.pre_feedforward_layernorm(x)
        y, auxiliary = self.mlp(normed)
        if placement in ("after", "both"):
            y = self.post_feedforward_layernorm(y)
        x = x + multiplied(y, factor)
        if inputs.embeddings is not None:
            gate = ACTIVATIONS[self.spec.activation](self.per_layer_input_gate(x))
            y = self.per_layer_projection(gate * inputs.computed(inputs.embeddings))
            x = x + self.post_per_layer_input_norm(y)
        if self.layer_scalar is not None:
            x = x * self.layer_scalar[...].astype(x.dtype)[None]
        return x, auxiliary


def multiplied(x: Float[Array, "*axes"], factor: float) -> Float[Array, "*axes"]:
    """Return x·factor. In float32: in bfloat16 the factor itself would be off by up to 0.4%."""
    return x if factor == 1 else (x.astype(jnp.float32) * factor).astype(x.dtype)
