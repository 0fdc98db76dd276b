"""`grouped_query`: attention whose query heads share fewer heads of keys and values."""

from typing import Any, ClassVar, Literal

from rope_jax.blocks.base import (
    TENSOR,
    Norm,
    Parameters,
    SelfAttention,
    Sharding,
    column_parallel,
    linear,
)


class GroupedQueryAttention(SelfAttention):
    """Grouped-query attention. QK-norm comes before the rotation, or after it without weights."""

    sharding: ClassVar[dict[str, Sharding]] = {
        **SelfAttention.sharding,
        **column_parallel("q_proj", "k_proj", "v_proj"),
        **dict.fromkeys(("q_norms.scale", "k_norms.scale"), Sharding((TENSOR, None))),
    }
    type: Literal["grouped_query"] = "grouped_query"

    def check(self, model: Any) -> None:
        if model.head_dim is None and model.hidden_size % model.num_attention_heads:
            raise ValueError(
                f"hidden_size {model.hidden_size} is not a multiple of num_attention_heads "
                f"{model.num_attention_heads}; set head_dim or change one of them"
            )

    def head_dim(self, model: Any) -> int:
        return int(model.head_dim or model.hidden_size // model.num_attention_heads)

    def parameters(self, model: Any) -> Parameters:
        d, width, bias = model.hidden_size, model.heads_width, model.qkv_bias
        queries, keys = model.num_attention_heads * width, model.kv_heads * width
        parameters: Parameters = {
            "q_proj": linear(d, queries, bias),
            "k_proj": linear(d, keys, bias),
            "v_proj": linear(d, keys, bias),
            **self.outputs(model),
        }
        if model.qk_norm == "by_head":
            parameters["q_norms"] = Norm(width, model.num_attention_heads)
            parameters["k_norms"] = Norm(width, model.kv_heads)
        elif model.qk_norm in (True, "all_heads"):
            together = model.qk_norm == "all_heads"
            parameters["q_norm"] = Norm(queries if together else width)
            parameters["k_norm"] = Norm(keys if together else width)
        return parameters

    def heads(self, model: Any, params: Any, x: Any, layer: Any) -> tuple[Any, Any, Any]:
        import jax.numpy as jnp

        width, length = model.heads_width, layer.inputs.length
        q = layer.column_parallel(layer.computed(x), params["q_proj"])
        k = layer.column_parallel(x, params["k_proj"])
        v = layer.column_parallel(x, params["v_proj"])
        if model.qk_norm == "all_heads":
            q, k = params["q_norm"](q), params["k_norm"](k)
        if (c := model.clip_qkv) is not None:
            q, k, v = (jnp.clip(y, -c, c) for y in (q, k, v))
        batch = x.shape[0] // length
        q, k, v = (y.reshape(batch, -1, y.shape[1] // width, width) for y in (q, k, v))
        if model.qk_norm is True:
            q, k = params["q_norm"](q), params["k_norm"](k)
        elif model.qk_norm == "by_head":
            q, k = params["q_norms"](q), params["k_norms"](k)
        return q, k, v
