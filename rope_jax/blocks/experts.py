"""`experts`: a mixture of experts, of which each token is given to a few by a router."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rope_jax.blocks.base import (
    FSDP,
    TENSOR,
    FeedForward,
    Parameter,
    Parameters,
    Sharding,
    column_parallel,
    linear,
    row_parallel,
)
from rope_jax.blocks.mlp import MLP, activation

_SHARED = tuple(f"shared_expert.{name}" for name in ("gate_proj", "up_proj"))
_ALPHA = 1.702  # of gpt-oss's activation


class Experts(FeedForward):
    """Σ_e w_e(x)·mlp_e(x) over the experts e that a router chooses for a token, the best few.

    The router's scores are softmax or sigmoid of its logits, in float32, and w_e is the score,
    divided by the sum of those chosen (`norm_topk_prob`), times `routed_scaling_factor`. Every
    token is computed by all of its experts: none has a capacity.

    The auxiliary loss is E·Σ_e f_e·P_e over the tokens that all devices compute at a time, those of
    one micro-batch: f_e is the share of choices that fell on e, and P_e the mean of its share of a
    token's scores. It is 1 if all experts are used equally. Source: Fedus et al., arXiv 2101.03961,
    eq. 4 to 6; with several choices as in DeepSeek-V2, arXiv 2405.04434, eq. 24 to 26.
    """

    sharding: ClassVar[dict[str, Sharding]] = {
        **dict.fromkeys(
            ("experts.gate_proj.kernel", "experts.up_proj.kernel"), Sharding((None, FSDP, TENSOR))
        ),
        **dict.fromkeys(
            ("experts.gate_proj.bias", "experts.up_proj.bias"), Sharding((None, TENSOR))
        ),
        "experts.down_proj.kernel": Sharding((None, TENSOR, FSDP)),
        "experts.down_proj.bias": Sharding((None, None), added_once=True),
        **column_parallel(*_SHARED),
        **row_parallel("shared_expert.down_proj"),
    }
    type: Literal["experts"] = "experts"
    num_experts: int = Field(8, gt=0, description="of which a router chooses")
    num_experts_per_tok: int = Field(2, gt=0, description="experts that compute each token")
    moe_intermediate_size: int | None = Field(
        None, gt=0, description="hidden width of an expert; null: intermediate_size"
    )
    scores: Literal["softmax", "sigmoid"] = Field("softmax", description="of the router's logits")
    norm_topk_prob: bool = Field(
        True,
        description="divide scores by the sum of those chosen; with one, the router learns nothing",
    )
    routed_scaling_factor: float = Field(1.0, gt=0, le=1e6, description="multiplies the scores")
    choice_bias: bool = Field(
        False, description="a number for each expert added to its score, for the choice only"
    )
    n_group: int = Field(1, gt=0, description="groups of experts (DeepSeek)")
    topk_group: int = Field(1, gt=0, description="groups from which a token's experts may be")
    group_score: Literal["best", "best_two"] = Field(
        "best", description="by which groups are chosen: their best score, or the sum of two"
    )
    scaled: Literal["outputs", "inputs"] = Field(
        "outputs", description="what scores multiply: experts' outputs, or inputs (Llama 4)"
    )
    router_bias: bool = Field(False, description="add biases to the router's logits")
    expert_bias: bool = Field(False, description="add biases in the experts")
    swiglu_limit: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="c: (up + 1)·gate·sigmoid(1.702·gate), gate ≤ c, |up| ≤ c (gpt-oss); null: "
        "what the mlp does",
    )
    shared_expert_intermediate_size: int | None = Field(
        None, gt=0, description="hidden width of one more expert, for all tokens; null: none"
    )
    shared_expert_gate: bool = Field(
        False, description="its output times sigmoid of a product with the token (Qwen 2)"
    )
    balance: float = Field(0.01, ge=0, le=1000, description="weight of the auxiliary loss")

    @model_validator(mode="after")
    def _can_choose(self) -> "Experts":
        if self.num_experts % self.n_group:
            raise ValueError(
                f"n_group: {self.num_experts} experts cannot be split into {self.n_group} groups"
            )
        if self.topk_group > self.n_group:
            raise ValueError(f"topk_group: {self.topk_group} is above n_group {self.n_group}")
        among = self.num_experts // self.n_group * self.topk_group
        if self.num_experts_per_tok > among:
            raise ValueError(
                f"num_experts_per_tok: {self.num_experts_per_tok} is above {among}, the number of "
                "experts to choose from"
            )
        if self.shared_expert_gate and self.shared_expert_intermediate_size is None:
            raise ValueError(
                "shared_expert_gate: has no effect without shared_expert_intermediate_size; give "
                "both"
            )
        return self

    def check(self, model: Any) -> None:
        if self.swiglu_limit and not (model.gated_mlp and model.activation == "silu"):
            raise ValueError(
                "feed_forward.swiglu_limit: is that of an activation of its own; leave gated_mlp "
                "true and activation silu"
            )

    def hidden_sizes(self, model: Any) -> dict[str, int]:
        sizes = {
            "feed_forward.moe_intermediate_size": self._width(model),
            "feed_forward.shared_expert_intermediate_size": self.shared_expert_intermediate_size,
        }
        return {key: size for key, size in sizes.items() if size is not None}

    def parameters(self, model: Any) -> Parameters:
        d, count = model.hidden_size, self.num_experts
        router = linear(d, count, self.router_bias)
        if self.choice_bias:
            router["choice_bias"] = Parameter((count,), "zeros", in_float32=True)
        one = _mlp(model, self._width(model), self.expert_bias)
        parameters: Parameters = {
            "router": router,
            "experts": {
                name: {
                    leaf: Parameter((count, *own.shape), own.initial) for leaf, own in part.items()
                }
                for name, part in one.items()
            },
        }
        if (shared := self.shared_expert_intermediate_size) is not None:
            parameters["shared_expert"] = _mlp(model, shared, model.mlp_bias)
            if self.shared_expert_gate:
                parameters["shared_expert_gate"] = linear(d, 1)
        return parameters

    def flops_per_token(self, model: Any) -> int:
        """2 for each entry of a matrix, of the experts only of those that compute a token."""
        unused = self.num_experts - self.num_experts_per_tok
        matrices = 3 if model.gated_mlp else 2
        idle = 2 * unused * matrices * model.hidden_size * self._width(model)
        return super().flops_per_token(model) - idle

    def numbers_per_token(self, model: Any) -> int:
        width, shared = self._width(model), self.shared_expert_intermediate_size or 0
        return max(3 * shared, self.num_experts_per_tok * (2 * model.hidden_size + 3 * width))

    def apply(self, model: Any, params: Any, x: Any, layer: Any) -> tuple[Any, Any]:
        import jax
        import jax.numpy as jnp

        from rope_jax.kernels.grouped import apply_per_group, gather_rows
        from rope_jax.kernels.projections import projected

        weights, chosen, shares = self._route(params["router"], x)
        tokens, each = chosen.shape
        order = jnp.argsort(chosen.reshape(-1))  # choices by expert
        places = jnp.argsort(order)  # where the choices of each token are
        uses = jnp.bincount(chosen.reshape(-1), length=self.num_experts)

        def hidden(gate: Any, up: Any) -> Any:
            if (limit := self.swiglu_limit) is None:
                return activation(model.activation)(gate) * up
            gate = jnp.minimum(gate, limit)
            return (jnp.clip(up, -limit, limit) + 1) * gate * jax.nn.sigmoid(_ALPHA * gate)

        def expert(product: Any, x: Any) -> Any:
            up = product(x, "up_proj")
            if model.gated_mlp:
                up = hidden(product(x, "gate_proj"), up)
            else:
                up = activation(model.activation)(up)
            return product(up, "down_proj")

        rows = gather_rows(layer.tokens(x), order // each, places)
        kernels: dict[str, dict[str, Any]] = {}
        for name, leaves in self.parameters(model)["experts"].items():
            weights_of = params["experts"][name]
            kernels[name] = {leaf: weights_of[leaf].astype(rows.dtype) for leaf in leaves}
            kernels[name]["kernel"] = layer.factor(weights_of["kernel"])
        if self.scaled == "inputs":
            rows = rows * weights.reshape(-1)[order][:, None].astype(rows.dtype)
            weights = jnp.ones_like(weights)
        rows = projected(apply_per_group(expert, layer.low_precision, kernels, rows, uses))
        of_token = gather_rows(rows, places, order).reshape(tokens, each, -1).astype(jnp.float32)
        out = layer.summed((of_token * weights[..., None]).sum(axis=1).astype(x.dtype))
        if "shared_expert" in params:
            shared, _ = MLP().apply(model, params["shared_expert"], x, layer)
            if self.shared_expert_gate:
                gate = layer.linear(x, params["shared_expert_gate"])
                shared = shared * jax.nn.sigmoid(gate.astype(jnp.float32)).astype(x.dtype)
            out = out + shared
        used = layer.mesh.mean_over_tokens(uses.astype(jnp.float32) / (tokens * each))
        auxiliary = (used * layer.mesh.mean_over_tokens(shares.mean(axis=0))).sum()
        return out, self.balance * self.num_experts * auxiliary

    def _route(self, router: Any, x: Any) -> tuple[Any, Any, Any]:
        """Return weights [tokens, K], the experts chosen [tokens, K], and shares [tokens, E].

        All are computed in float32. The shares of a token are its scores over their sum.
        """
        import jax
        import jax.numpy as jnp

        wide, kernel = x.astype(jnp.float32), router["kernel"].astype(jnp.float32)
        logits = jnp.matmul(wide, kernel, precision=jax.lax.Precision.HIGHEST)
        if self.router_bias:
            logits = logits + router["bias"].astype(jnp.float32)[None]
        if self.scores == "softmax":
            scores = shares = jax.nn.softmax(logits, axis=-1)
        else:
            scores = jax.nn.sigmoid(logits)
            shares = scores / (scores.sum(axis=-1, keepdims=True) + 1e-20)
        ranked = jax.lax.stop_gradient(scores)
        if self.choice_bias:
            ranked = ranked + router["choice_bias"].astype(jnp.float32)[None]
        if self.topk_group < self.n_group:
            grouped = ranked.reshape(len(x), self.n_group, -1)
            counted = 1 if self.group_score == "best" else min(2, grouped.shape[-1])
            best = jax.lax.top_k(grouped, counted)[0].sum(axis=-1)
            groups = jax.lax.top_k(best, self.topk_group)[1]
            may = jax.nn.one_hot(groups, self.n_group).sum(axis=1) > 0
            ranked = jnp.where(may[..., None], grouped, -jnp.inf).reshape(ranked.shape)
        chosen = jax.lax.top_k(ranked, self.num_experts_per_tok)[1]
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if self.norm_topk_prob:
            weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
        return weights * self.routed_scaling_factor, chosen, shares

    def _width(self, model: Any) -> int:
        return self.moe_intermediate_size or model.intermediate_size


def _mlp(model: Any, width: int, bias: bool) -> Parameters:
    """Return the parameters of an `mlp` of another hidden width."""
    return MLP().parameters(model.model_copy(update={"intermediate_size": width, "mlp_bias": bias}))
