"""`gated_delta_net`: a memory of fixed size in the place of keys and values (Qwen3-Next, Qwen3.5).

Shapes: B batch, S tokens per window, T of them computed, D model, K heads of queries and keys, N of
values, H head dim of queries and keys, V that of values, C = 2·K·H + N·V; tokens: B·S, the windows
laid end to end; computed: B·T. Where a mesh splits heads or windows, K, N and S are this device's
own, but the memory reads all tokens of a window.
"""

from dataclasses import replace
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int
from pydantic import Field, model_validator

from rope_jax.attention.delta import (
    DeltaState,
    LastInputs,
    Memory,
    gated_delta_rule,
    short_convolution,
)
from rope_jax.blocks.base import COLUMN_PARALLEL, ROW_PARALLEL, DecoderSpec, Linear, parameter
from rope_jax.blocks.cache import Cache
from rope_jax.blocks.mixer import EVERY_KEY, AttentionSpan, LayerInputs, Mixer
from rope_jax.blocks.norms import norm
from rope_jax.collectives import TENSOR, Sharding

Size = Annotated[int, Field(gt=0, le=2**20)]


class GatedDeltaNet(Mixer):
    """Gated DeltaNet, Yang et al., arXiv 2412.06464, as in Qwen3-Next.

        q, k, v = conv_q(in_q x), conv_k(in_k x), conv_v(in_v x)
        β = sigmoid(in_b x),  log_decay = −exp(A_log)·softplus(in_a x + dt_bias)
        y = out_proj(rms_norm(o)·norm·silu(in_z x))

    where o are the queries' results in the memory of `gated_delta_rule`, a head at a time. There
    are no positions: the order of tokens is that in which they are read. The memory and the
    convolution start anew with each document. Devices that share a window each read all of it.

    A_log and dt_bias, both of value heads, are float32, as is all between projections.
    """

    class Config(Mixer.Config):
        """A memory that each token decays and corrects, without positions (Qwen3-Next)."""

        type: Literal["gated_delta_net"] = "gated_delta_net"
        linear_num_key_heads: Size = Field(2, description="heads of queries and keys")
        linear_num_value_heads: Size = Field(4, description="heads of values; each has a memory")
        linear_key_head_dim: Size = Field(32, description="width of a head's queries and keys")
        linear_value_head_dim: Size = Field(32, description="width of a head's values")
        linear_conv_kernel_dim: int = Field(
            4, ge=2, le=64, description="tokens that q, k and v of a token are made of"
        )

        @model_validator(mode="after")
        def _check(self) -> "GatedDeltaNet.Config":
            keys, values = self.linear_num_key_heads, self.linear_num_value_heads
            if values % keys:
                raise ValueError(
                    f"linear_num_value_heads {values} is not a multiple of linear_num_key_heads "
                    f"{keys}"
                )
            return self

        def build(
            self, spec: DecoderSpec, rngs: nnx.Rngs, span: AttentionSpan = EVERY_KEY
        ) -> "GatedDeltaNet":
            return GatedDeltaNet(self, spec, rngs)

        @property
        def widths(self) -> tuple[int, int, int]:
            """The numbers of a token's q, k and v."""
            keys = self.linear_num_key_heads * self.linear_key_head_dim
            return keys, keys, self.linear_num_value_heads * self.linear_value_head_dim

        def flops_per_token(self, spec: DecoderSpec) -> int:
            """2 for each weight, and three products with the memory of a head."""
            return super().flops_per_token(spec) + 6 * self.linear_key_head_dim * self.widths[2]

        def splits_windows(self, spec: DecoderSpec) -> bool:
            return True

        def tensor_sizes(self, spec: DecoderSpec) -> dict[str, int]:
            return {
                "alternate_mixer.linear_num_key_heads": self.linear_num_key_heads,
                "alternate_mixer.linear_num_value_heads": self.linear_num_value_heads,
            }

        def empty_cache(self, spec: DecoderSpec, batch: int, capacity: int, bands: int) -> Cache:
            before, keys = self.linear_conv_kernel_dim - 1, self.linear_num_key_heads
            x = jnp.zeros((batch, before, sum(self.widths)), spec.dtype)
            groups = self.linear_num_value_heads // keys
            widths = self.linear_key_head_dim, self.linear_value_head_dim
            kv = jnp.zeros((batch, keys, groups, *widths), jnp.float32)
            inputs = LastInputs(x, jnp.full((batch, before), -1, jnp.int32))
            return DeltaState(inputs, Memory(kv, jnp.full(batch, -1, jnp.int32)))

    def __init__(self, config: Config, spec: DecoderSpec, rngs: nnx.Rngs) -> None:
        super().__init__(spec)
        self.config = config
        heads, by_head = (config.linear_num_value_heads,), Sharding((TENSOR,))

        def to(width: int) -> Linear:
            return Linear(spec, spec.hidden_size, width, rngs, axes=COLUMN_PARALLEL)

        self.in_q, self.in_k, self.in_v = map(to, config.widths)
        self.in_z, self.in_a, self.in_b = map(to, (config.widths[2], *heads, *heads))
        self.conv_q, self.conv_k, self.conv_v = (
            Convolution(spec, config.linear_conv_kernel_dim, width, rngs) for width in config.widths
        )
        rate = jax.random.uniform(rngs.params(), heads, jnp.float32, 0.01, 16)
        self.A_log = nnx.Param(jnp.log(rate), split=by_head)
        self.dt_bias = parameter(
            spec, heads, rngs, initial=1.0, dtype=jnp.float32, sharding=by_head
        )
        # always without 1 + weight
        self.norm = norm(replace(spec, norm="rms_norm"), config.linear_value_head_dim, rngs)
        self.out_proj = Linear(spec, config.widths[2], spec.hidden_size, rngs, axes=ROW_PARALLEL)

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs
    ) -> Float[Array, "computed D"]:
        spec, cache, batch = self.spec, self.cache, x.shape[0] // inputs.length
        assert cache is None or isinstance(cache, DeltaState)
        read, memory = (None, None) if cache is None else cache

        def of_windows(y: Float[Array, "tokens _"]) -> Float[Array, "B _ _"]:
            return spec.mesh.all_tokens(y.reshape(batch, -1, y.shape[1]), 1)

        qkv = [self.in_q(x), self.in_k(x), self.in_v(x)]
        kernel = jnp.concatenate(
            [p.kernel[...] for p in (self.conv_q, self.conv_k, self.conv_v)], 1
        )
        together = of_windows(jnp.concatenate(qkv, axis=1))
        segment_ids = _documents(inputs, together.shape[:2])
        together, last = short_convolution(together, kernel, segment_ids, read)
        q, k, v = self._heads(together, qkv[0].shape[1])
        a, b = (of_windows(p(x)).astype(jnp.float32) for p in (self.in_a, self.in_b))
        A_log, dt_bias = (p[...][None, None] for p in (self.A_log, self.dt_bias))
        log_decay = -jnp.exp(A_log) * jax.nn.softplus(a + dt_bias)
        out, memory = gated_delta_rule(q, k, v, log_decay, jax.nn.sigmoid(b), segment_ids, memory)
        if cache is not None:
            self.cache = DeltaState(last, memory)
        out = spec.mesh.own_tokens(out, 1)[:, -(inputs.last or inputs.length) :]
        z = self.in_z(inputs.computed(x)).reshape(out.shape).astype(jnp.float32)
        out = (self.norm(out.astype(jnp.float32)) * jax.nn.silu(z)).astype(x.dtype)
        return self.out_proj(out.reshape(out.shape[0] * out.shape[1], -1))

    def _heads(self, together: Float[Array, "B S C"], keys: int) -> list[Float[Array, "B S _ _"]]:
        """Return q, k and v by head. keys: numbers of a token's keys."""
        config = self.config
        widths = *(config.linear_key_head_dim,) * 2, config.linear_value_head_dim
        parts = jnp.split(together, [keys, 2 * keys], axis=-1)
        return [
            part.reshape(*part.shape[:2], -1, width)
            for part, width in zip(parts, widths, strict=True)
        ]


def _documents(inputs: LayerInputs, shape: tuple[int, ...]) -> Int[Array, "B S"]:
    """Return the segment ids of the tokens that are read now."""
    if inputs.segment_ids is None:
        return jnp.zeros(shape, jnp.int32)
    if inputs.first is None:
        return inputs.segment_ids
    return jax.lax.dynamic_slice_in_dim(inputs.segment_ids, inputs.first, shape[1], 1)


class Convolution(nnx.Module):
    """The kernel of a convolution over tokens, of every channel by itself."""

    def __init__(self, spec: DecoderSpec, width: int, channels: int, rngs: nnx.Rngs) -> None:
        self.kernel = parameter(spec, (width, channels), rngs, sharding=Sharding((None, TENSOR)))
