"""`latent`: attention whose keys and values are made of one short vector for each token."""

import math
from typing import Annotated, Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from pydantic import Field

from rope_jax.blocks.attention import QKV, SelfAttention
from rope_jax.blocks.base import COLUMN_PARALLEL, DecoderSpec, Linear
from rope_jax.blocks.mixer import EVERY_KEY, AttentionSpan, LayerInputs
from rope_jax.blocks.norms import norm
from rope_jax.collectives import FSDP
from rope_jax.positions.interaction import plus_by_distance

# DeepSeek's code has it, whatever the epsilon of the other norms.
_EPSILON = 1e-6
Size = Annotated[int, Field(gt=0, le=2**20)]


class LatentAttention(SelfAttention):
    """Multi-head latent attention: k and v of all heads from a latent vector (DeepSeek).

    A token x has the latents norm(W_qa x) and norm(W_kva x) of q_lora_rank and kv_lora_rank
    numbers, and one rotated key k_pe of qk_rope_head_dim numbers, which all heads share. Each head
    has [q_pe, q_nope] from the first latent, and k_nope and v from the second; its key is
    [k_pe, k_nope]. The rotated numbers come first here, as wherever a part of a head is rotated,
    and logits are divided by √(qk_rope_head_dim + qk_nope_head_dim). Biases of queries, keys and
    values (`qkv_bias`) are those of the latents.

    Of what was read, a cache keeps k_pe and the latent c of keys and values: q_nope·k_nope is
    (W_kᵀ q_nope)·c, and the values of a head are W_v c (§2.1.2), so all heads share the key
    [k_pe, c] and the value c. An encoding whose logits are not products of queries and keys needs
    the heads' own.

    Source: DeepSeek-V2, arXiv 2405.04434, §2.1. The latents are not split over "tensor".
    """

    class Config(SelfAttention.Config):
        """Multi-head latent attention: k and v of all heads from a latent vector (DeepSeek)."""

        type: Literal["latent"] = "latent"
        q_lora_rank: Size | None = Field(None, description="null: queries without a latent")
        kv_lora_rank: Size = Field(
            64, description="numbers from which a token's k_nope and v are made"
        )
        qk_rope_head_dim: Size = Field(16, multiple_of=2, description="rotated numbers of a head")
        qk_nope_head_dim: Size = Field(32, description="numbers of a head that are not rotated")
        v_head_dim: Size = Field(32, description="width of a head's values")

        def build(
            self, spec: DecoderSpec, rngs: nnx.Rngs, span: AttentionSpan = EVERY_KEY
        ) -> "LatentAttention":
            return LatentAttention(self, spec, span, rngs)

        def head_dim(self, spec: DecoderSpec) -> int:
            return self.qk_rope_head_dim + self.qk_nope_head_dim

        def value_dim(self, spec: DecoderSpec) -> int:
            return self.v_head_dim

        def rotary_dim(self, spec: DecoderSpec) -> int:
            return self.qk_rope_head_dim

        def shares_latents(self, spec: DecoderSpec) -> bool:
            """Whether a cache keeps latents, see above."""
            encoding = spec.encoding
            is_product = not encoding.needs_interaction or encoding.scores is plus_by_distance
            return is_product and spec.backend.is_softmax and spec.qk_norm != "rotated"

        def cached_heads(self, spec: DecoderSpec) -> tuple[int, int, int | None]:
            if self.shares_latents(spec):
                return 1, self.qk_rope_head_dim + self.kv_lora_rank, None
            return spec.num_attention_heads, *super().cached_heads(spec)[1:]

    def __init__(
        self, config: Config, spec: DecoderSpec, span: AttentionSpan, rngs: nnx.Rngs
    ) -> None:
        super().__init__(spec, span)
        self.config = config
        d, heads, bias = spec.hidden_size, spec.num_attention_heads, spec.qkv_bias
        queries, rank = heads * config.head_dim(spec), config.kv_lora_rank
        keys_and_values = heads * (config.qk_nope_head_dim + config.v_head_dim)
        if config.q_lora_rank is None:
            self.q_proj = Linear(spec, d, queries, rngs, axes=COLUMN_PARALLEL)
        else:
            self.q_a_proj = Linear(spec, d, config.q_lora_rank, rngs, axes=(FSDP, None), bias=bias)
            self.q_a_layernorm = norm(spec, config.q_lora_rank, rngs, epsilon=_EPSILON)
            self.q_b_proj = Linear(spec, config.q_lora_rank, queries, rngs, axes=COLUMN_PARALLEL)
        self.kv_a_proj = Linear(
            spec, d, rank + config.qk_rope_head_dim, rngs, axes=(FSDP, None), bias=bias
        )
        self.kv_a_layernorm = norm(spec, rank, rngs, epsilon=_EPSILON)
        self.kv_b_proj = Linear(spec, rank, keys_and_values, rngs, axes=COLUMN_PARALLEL)
        self._build_outputs(config.v_head_dim, rngs)

    def heads(self, x: Float[Array, "tokens D"], inputs: LayerInputs) -> QKV:
        config, rank = self.config, self.config.kv_lora_rank
        rotated, plain = config.qk_rope_head_dim, config.qk_nope_head_dim
        batch, width = x.shape[0] // inputs.length, rotated + plain
        q = inputs.computed(x)
        if config.q_lora_rank is None:
            q = self.q_proj(q)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(q)))
        q = q.reshape(batch, -1, q.shape[1] // width, width)
        latent = self.kv_a_proj(x)
        k_pe = latent[:, rank:].reshape(batch, -1, 1, rotated)
        latent = self.kv_a_layernorm(latent[:, :rank])
        # in the weights, as published, the rotated numbers are the last ones
        q = jnp.roll(q, rotated, axis=-1)
        if self._reads_latents:
            latent = latent.reshape(batch, -1, 1, rank)
            of_latent = jnp.einsum("btnh,rnh->btnr", q[..., rotated:], self._by_head[0])
            q = jnp.concatenate([q[..., :rotated], of_latent], axis=-1).astype(jnp.float32)
            q = q * math.sqrt(q.shape[-1] / width)  # attention divides by the root of its width
            return q.astype(x.dtype), jnp.concatenate([k_pe, latent], axis=-1), latent
        kv = self.kv_b_proj(latent)
        kv = kv.reshape(batch, -1, q.shape[2], plain + config.v_head_dim)
        k_pe = jnp.broadcast_to(k_pe, (*kv.shape[:3], rotated))
        k = jnp.concatenate([k_pe, kv[..., :plain]], axis=-1)
        return q, k, kv[..., plain:]

    def attended_values(
        self, out: Float[Array, "B T N _"], x: Float[Array, "computed D"]
    ) -> Float[Array, "B T N V"]:
        if not self._reads_latents:
            return out
        return jnp.einsum("btnr,rnv->btnv", out, self._by_head[1]).astype(out.dtype)

    @property
    def _reads_latents(self) -> bool:
        return self.cache is not None and self.config.shares_latents(self.spec)

    @property
    def _by_head(self) -> list[Float[Array, "rank N _"]]:
        """W_k and W_v of each head."""
        factor, config = self.kv_b_proj.factor, self.config
        width = config.qk_nope_head_dim + config.v_head_dim
        factor = factor.reshape(config.kv_lora_rank, -1, width)
        return jnp.split(factor, [config.qk_nope_head_dim], axis=-1)
