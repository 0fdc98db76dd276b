"""`latent`: attention whose keys and values are made of one short vector for each token."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rope_jax.blocks.base import (
    FSDP,
    Norm,
    Parameters,
    SelfAttention,
    Sharding,
    column_parallel,
    linear,
)

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

    Source: DeepSeek-V2, arXiv 2405.04434, §2.1. The latents are not split over "tensor".
    """

    sharding: ClassVar[dict[str, Sharding]] = {
        **SelfAttention.sharding,
        **column_parallel("q_proj", "q_b_proj", "kv_b_proj"),
        **{f"{name}.kernel": Sharding((FSDP, None)) for name in ("q_a_proj", "kv_a_proj")},
    }
    type: Literal["latent"] = "latent"
    q_lora_rank: Size | None = Field(None, description="null: queries without a latent")
    kv_lora_rank: Size = Field(64, description="numbers from which a token's k_nope and v are made")
    qk_rope_head_dim: Size = Field(16, multiple_of=2, description="rotated numbers of a head")
    qk_nope_head_dim: Size = Field(32, description="numbers of a head that are not rotated")
    v_head_dim: Size = Field(32, description="width of a head's values")

    def check(self, model: Any) -> None:
        for key, given, wanted in (
            ("head_dim", model.head_dim, None),
            ("num_key_value_heads", model.num_key_value_heads, model.num_attention_heads),
            ("qk_norm", model.qk_norm, False),
            ("clip_qkv", model.clip_qkv, None),
            ("position", model.position.type, "rope"),
        ):
            if given not in (None, wanted):
                raise ValueError(
                    f"{key}: is {given}, but with self_attention latent it can only be "
                    f"{'null' if wanted is None else wanted}"
                )

    def head_dim(self, model: Any) -> int:
        return self.qk_rope_head_dim + self.qk_nope_head_dim

    def value_dim(self, model: Any) -> int:
        return self.v_head_dim

    def rotary_dim(self, model: Any) -> int:
        return self.qk_rope_head_dim

    def parameters(self, model: Any) -> Parameters:
        d, heads, bias = model.hidden_size, model.num_attention_heads, model.qkv_bias
        queries, rank = heads * self.head_dim(model), self.kv_lora_rank
        parameters: Parameters = {"q_proj": linear(d, queries)}
        if self.q_lora_rank is not None:
            parameters = {
                "q_a_proj": linear(d, self.q_lora_rank, bias),
                "q_a_layernorm": Norm(self.q_lora_rank, epsilon=_EPSILON),
                "q_b_proj": linear(self.q_lora_rank, queries),
            }
        return parameters | {
            "kv_a_proj": linear(d, rank + self.qk_rope_head_dim, bias),
            "kv_a_layernorm": Norm(rank, epsilon=_EPSILON),
            "kv_b_proj": linear(rank, heads * (self.qk_nope_head_dim + self.v_head_dim)),
            **self.outputs(model),
        }

    def heads(self, model: Any, params: Any, x: Any, layer: Any) -> tuple[Any, Any, Any]:
        import jax.numpy as jnp

        rotated, plain, rank = self.qk_rope_head_dim, self.qk_nope_head_dim, self.kv_lora_rank
        batch, width = x.shape[0] // layer.inputs.length, self.head_dim(model)
        q, name = layer.computed(x), "q_proj"
        if self.q_lora_rank is not None:
            q, name = params["q_a_layernorm"](layer.linear(q, params["q_a_proj"])), "q_b_proj"
        q = layer.column_parallel(q, params[name])
        q = q.reshape(batch, -1, q.shape[1] // width, width)
        latent = layer.linear(x, params["kv_a_proj"])
        k_pe = latent[:, rank:].reshape(batch, -1, 1, rotated)
        kv = layer.column_parallel(params["kv_a_layernorm"](latent[:, :rank]), params["kv_b_proj"])
        kv = kv.reshape(batch, -1, q.shape[2], plain + self.v_head_dim)
        k_pe = jnp.broadcast_to(k_pe, (*kv.shape[:3], rotated))
        k = jnp.concatenate([k_pe, kv[..., :plain]], axis=-1)
        # in the weights, as published, the rotated numbers are the last ones
        return jnp.roll(q, rotated, axis=-1), k, kv[..., plain:]
