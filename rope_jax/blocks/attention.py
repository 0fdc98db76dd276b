"""Grouped-query attention: the block that mixes tokens."""

from typing import Any, ClassVar

from rope_jax.blocks.base import (
    TENSOR,
    Block,
    Norm,
    Parameters,
    Sharding,
    column_parallel,
    linear,
    row_parallel,
)


class GroupedQueryAttention(Block):
    """Grouped-query attention. QK-norm, where configured, comes before the rotation."""

    slot: ClassVar[str] = "self_attn"
    sharding: ClassVar[dict[str, Sharding]] = {
        **column_parallel("q_proj", "k_proj", "v_proj"),
        **row_parallel("o_proj"),
        **dict.fromkeys(("q_norms.scale", "k_norms.scale"), Sharding((TENSOR, None))),
    }

    def parameters(self, model: Any) -> Parameters:
        d, width, bias = model.hidden_size, model.heads_width, model.qkv_bias
        queries, keys = model.num_attention_heads * width, model.kv_heads * width
        parameters: Parameters = {
            "q_proj": linear(d, queries, bias),
            "k_proj": linear(d, keys, bias),
            "v_proj": linear(d, keys, bias),
            "o_proj": linear(queries, d, model.o_bias),
        }
        if model.qk_norm == "by_head":
            parameters["q_norms"] = Norm(width, model.num_attention_heads)
            parameters["k_norms"] = Norm(width, model.kv_heads)
        elif model.qk_norm:
            together = model.qk_norm == "all_heads"
            parameters["q_norm"] = Norm(queries if together else width)
            parameters["k_norm"] = Norm(keys if together else width)
        return parameters

    def flops_per_pair(self, model: Any) -> int:
        """Two products of width H in each head; none if sums replace the pairs."""
        width = model.num_attention_heads * model.heads_width
        return 4 * width if model.backend.is_softmax else 0

    def apply(self, model: Any, params: Any, x: Any, layer: Any) -> Any:
        """Attend from the computed tokens [tokens, D] to all tokens of their windows."""
        import jax.numpy as jnp

        width, length = model.heads_width, layer.inputs.length
        q = layer.column_parallel(layer.computed(x), params["q_proj"])
        k = layer.column_parallel(x, params["k_proj"])
        v = layer.column_parallel(x, params["v_proj"])
        if (c := model.clip_qkv) is not None:
            q, k, v = (jnp.clip(y, -c, c) for y in (q, k, v))
        if model.qk_norm == "all_heads":
            q, k = params["q_norm"](q), params["k_norm"](k)
        batch = x.shape[0] // length
        q, k, v = (y.reshape(batch, -1, y.shape[1] // width, width) for y in (q, k, v))
        if model.qk_norm is True:
            q, k = params["q_norm"](q), params["k_norm"](k)
        elif model.qk_norm == "by_head":
            q, k = params["q_norms"](q), params["k_norms"](k)
        out = layer.attend(q, k, v)
        return layer.row_parallel(out.reshape(out.shape[0] * out.shape[1], -1), params["o_proj"])
