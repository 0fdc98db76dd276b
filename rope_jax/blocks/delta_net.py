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
from jaxtyping import Array, Float
from pydantic import Field, model_validator

from rope_jax.attention.delta import DeltaState, gated_delta_rule, short_convolution
from rope_jax.blocks.base import COLUMN_PARALLEL, ROW_PARALLEL, DecoderSpec, Linear, parameter
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
                raise ValueError(f"linear_num_value_heads: {values} should be a multiple of {keys}")
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

        def flops_per_token(self, spec: DecoderSpec, span: AttentionSpan = EVERY_KEY) -> int:
            """2 for each weight, and three products with the memory of a head."""
            return super().flops_per_token(spec) + 6 * self.linear_key_head_dim * self.widths[2]

        def splits_windows(self, spec: DecoderSpec) -> bool:
            return True

        def tensor_sizes(self, spec: DecoderSpec) -> dict[str, int]:
            names = "linear_num_key_heads", "linear_num_value_heads"
            return {f"alternate_mixer.{name}": getattr(self, name) for name in names}

        def empty_cache(
            self, spec: DecoderSpec, batch: int, capacity: int, bands: int, split: int = 1
        ) -> DeltaState:
            """split: how many devices share the heads."""
            keys, before = self.linear_num_key_heads, self.linear_conv_kernel_dim - 1
            by_head = keys // split, self.linear_num_value_heads // keys
            widths = self.linear_key_head_dim, self.linear_value_head_dim
            return DeltaState(
                jnp.zeros((batch, *by_head, *widths), jnp.float32),
                jnp.zeros((batch, before, sum(self.widths) // split), spec.dtype),
                jnp.full((batch, before), -1, jnp.int32),
            )

    def __init__(self, config: Config, spec: DecoderSpec, rngs: nnx.Rngs) -> None:
        super().__init__(spec)
        self.config = config
        heads, by_head = (config.linear_num_value_heads,), Sharding((TENSOR,))

        def to(width: int) -> Linear:
            return Linear(spec, spec.hidden_size, width, rngs, axes=COLUMN_PARALLEL)

        self.in_q, self.in_k, self.in_v = map(to, config.widths)
        self.in_z, self.in_a, self.in_b = map(to, (config.widths[2], *heads, *heads))
        self.conv_q, self.conv_k, self.conv_v = (  # of each output by itself
            Linear(spec, config.linear_conv_kernel_dim, width, rngs, axes=(None, TENSOR))
            for width in config.widths
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
        config, mesh, batch = self.config, self.spec.mesh, x.shape[0] // inputs.length

        def of_windows(y: Float[Array, "tokens _"]) -> Float[Array, "B _ _"]:
            return mesh.all_tokens(y.reshape(batch, -1, y.shape[1]), 1)

        read = self.cache
        if read is None:
            read = config.empty_cache(self.spec, batch, 0, 1, mesh.tensor)
        assert isinstance(read, DeltaState)
        qkv = [self.in_q(x), self.in_k(x), self.in_v(x)]
        new = of_windows(jnp.concatenate(qkv, axis=1))
        segment_ids = inputs.documents(new.shape[1])
        if segment_ids is None:
            segment_ids = jnp.zeros(new.shape[:2], jnp.int32)
        every = jnp.concatenate([read.inputs, new], axis=1)
        documents = jnp.concatenate([read.documents, segment_ids], axis=1)
        kernels = [conv.kernel[...] for conv in (self.conv_q, self.conv_k, self.conv_v)]
        mixed = short_convolution(every, documents, jnp.concatenate(kernels, axis=1))
        widths = *(config.linear_key_head_dim,) * 2, config.linear_value_head_dim
        ends = qkv[0].shape[1], 2 * qkv[0].shape[1]
        q, k, v = (
            part.reshape(*part.shape[:2], -1, width)
            for part, width in zip(jnp.split(mixed, ends, axis=2), widths, strict=True)
        )
        a, b = (of_windows(p(x)).astype(jnp.float32) for p in (self.in_a, self.in_b))
        A_log, dt_bias = (p[...][None, None] for p in (self.A_log, self.dt_bias))
        log_decay, beta = -jnp.exp(A_log) * jax.nn.softplus(a + dt_bias), jax.nn.sigmoid(b)
        before = read.memory, read.documents[:, -1]
        out, memory = gated_delta_rule(q, k, v, log_decay, beta, segment_ids, *before)
        if self.cache is not None:
            last = config.linear_conv_kernel_dim - 1
            self.cache = DeltaState(memory, every[:, -last:], documents[:, -last:])
        out = mesh.own_tokens(out, 1)[:, -(inputs.last or inputs.length) :]
        z = self.in_z(inputs.computed(x)).reshape(out.shape).astype(jnp.float32)
        out = (self.norm(out.astype(jnp.float32)) * jax.nn.silu(z)).astype(x.dtype)
        return self.out_proj(out.reshape(out.shape[0] * out.shape[1], -1))
