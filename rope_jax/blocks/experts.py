"""`experts`: a mixture of experts, of which each token is given to a few by a router.

Shapes: tokens: B·S; D model, F hidden layer of an expert, E experts, C of them chosen for a token.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int
from pydantic import Field, model_validator

from rope_jax.blocks.base import (
    COLUMN_PARALLEL,
    ROW_PARALLEL,
    Auxiliary,
    DecoderSpec,
    FeedForward,
    Linear,
    parameter,
)
from rope_jax.blocks.dispatch import gather_rows, order_by_expert, sum_rows
from rope_jax.blocks.mlp import ACTIVATIONS, MLP
from rope_jax.kernels.gated import gated_feed_forward
from rope_jax.kernels.loading import load_kernels
from rope_jax.kernels.projections import has_kernels, project, projected

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

    class Config(FeedForward.Config):
        """Σ_e w_e(x)·mlp_e(x) over the experts e that a router chooses for a token."""

        type: Literal["experts"] = "experts"
        num_experts: int = Field(8, gt=0, description="of which a router chooses")
        num_experts_per_tok: int = Field(2, gt=0, description="experts that compute each token")
        moe_intermediate_size: int | None = Field(
            None, gt=0, description="hidden width of an expert; null: intermediate_size"
        )
        scores: Literal["softmax", "sigmoid"] = Field(
            "softmax", description="of the router's logits"
        )
        norm_topk_prob: bool = Field(
            True,
            description="divide scores by the sum of those chosen; "
            "with one, the router learns nothing",
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
        def _can_choose(self) -> "Experts.Config":
            if self.num_experts % self.n_group:
                raise ValueError(
                    f"n_group: {self.num_experts} experts cannot be split into "
                    f"{self.n_group} groups"
                )
            if self.topk_group > self.n_group:
                raise ValueError(f"topk_group: {self.topk_group} is above n_group {self.n_group}")
            among = self.num_experts // self.n_group * self.topk_group
            if self.num_experts_per_tok > among:
                raise ValueError(
                    f"num_experts_per_tok: {self.num_experts_per_tok} is above {among}, the number "
                    "of experts to choose from"
                )
            if self.shared_expert_gate and self.shared_expert_intermediate_size is None:
                raise ValueError(
                    "shared_expert_gate: has no effect without shared_expert_intermediate_size; "
                    "give both"
                )
            return self

        def build(self, spec: DecoderSpec, rngs: nnx.Rngs) -> "Experts":
            return Experts(self, spec, rngs)

        def width(self, spec: DecoderSpec) -> int:
            """Return the hidden width of an expert."""
            return self.moe_intermediate_size or spec.intermediate_size

        def tensor_sizes(self, spec: DecoderSpec) -> dict[str, int]:
            sizes = {"feed_forward.moe_intermediate_size": self.width(spec)}
            if (shared := self.shared_expert_intermediate_size) is not None:
                sizes["feed_forward.shared_expert_intermediate_size"] = shared
            return sizes

        def flops_per_token(self, spec: DecoderSpec) -> int:
            """2 for each weight, of the experts only of those that compute a token."""
            unused = self.num_experts - self.num_experts_per_tok
            matrices = 3 if spec.gated_mlp else 2
            idle = 2 * unused * matrices * spec.hidden_size * self.width(spec)
            return super().flops_per_token(spec) - idle

        def activation_floats_per_token(self, spec: DecoderSpec) -> int:
            shared = self.shared_expert_intermediate_size or 0
            width = self.width(spec)
            each = max(spec.hidden_size, width) + 2 * width
            if load_kernels() is None:  # products of one expert, beside those of all
                each += spec.hidden_size
            return max(3 * shared, self.num_experts_per_tok * each)

    def __init__(self, config: Config, spec: DecoderSpec, rngs: nnx.Rngs) -> None:
        self.config, self.spec = config, spec
        self.router = Router(config, spec, rngs)
        self.experts = StackedMLPs(config, spec, rngs)
        if (shared := config.shared_expert_intermediate_size) is not None:
            self.shared_expert = MLP(spec, shared, rngs)
            if config.shared_expert_gate:
                self.shared_expert_gate = Linear(spec, spec.hidden_size, 1, rngs)

    def __call__(self, x: Float[Array, "tokens D"]) -> tuple[Float[Array, "tokens D"], Auxiliary]:
        config, mesh = self.config, self.spec.mesh
        weights, chosen, shares = self.router(x)
        order, uses = order_by_expert(chosen, config.num_experts)
        rows = gather_rows(x.astype(self.spec.factor_dtype), order)
        if config.scaled == "inputs":
            rows = rows * weights.reshape(-1)[order.choice][:, None].astype(rows.dtype)
            weights = jnp.ones_like(weights)
        share = sum_rows(projected(self.experts(rows, uses)), weights, order).astype(x.dtype)
        out = projected(mesh.sum_over_tensor(share))
        if config.shared_expert_intermediate_size is not None:
            shared, _ = self.shared_expert(x)
            if config.shared_expert_gate:
                gate = self.shared_expert_gate(x).astype(jnp.float32)
                shared = shared * jax.nn.sigmoid(gate).astype(x.dtype)
            out = out + shared
        used = mesh.mean_over_tokens(uses.astype(jnp.float32) / chosen.size)
        auxiliary = (used * mesh.mean_over_tokens(shares.mean(axis=0))).sum()
        return out, config.balance * config.num_experts * auxiliary


class Router(nnx.Module):
    """Scores of every expert for a token, and the choice of the best, all in float32."""

    def __init__(self, config: Experts.Config, spec: DecoderSpec, rngs: nnx.Rngs) -> None:
        self.config, count = config, config.num_experts
        self.kernel = parameter(spec, (spec.hidden_size, count), rngs)
        if config.router_bias:
            self.bias = parameter(spec, (count,), rngs, initial=0.0)
        if config.choice_bias:
            self.choice_bias = parameter(spec, (count,), rngs, initial=0.0, dtype="float32")

    def __call__(
        self, x: Float[Array, "tokens D"]
    ) -> tuple[Float[Array, "tokens C"], Int[Array, "tokens C"], Float[Array, "tokens E"]]:
        """Return the weights of the C experts chosen, these, and each expert's share.

        The shares of a token are its scores over their sum.
        """
        config, kernel = self.config, self.kernel[...].astype(jnp.float32)
        logits = jnp.matmul(x.astype(jnp.float32), kernel, precision=jax.lax.Precision.HIGHEST)
        if config.router_bias:
            logits = logits + self.bias[...].astype(jnp.float32)[None]
        if config.scores == "softmax":
            scores = shares = jax.nn.softmax(logits, axis=-1)
        else:
            scores = jax.nn.sigmoid(logits)
            shares = scores / (scores.sum(axis=-1, keepdims=True) + 1e-20)
        ranked = jax.lax.stop_gradient(scores)
        if config.choice_bias:
            ranked = ranked + self.choice_bias[...].astype(jnp.float32)[None]
        if config.topk_group < config.n_group:
            ranked = self._in_best_groups(ranked)
        chosen = jax.lax.top_k(ranked, config.num_experts_per_tok)[1]
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if config.norm_topk_prob:
            weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
        return weights * config.routed_scaling_factor, chosen, shares

    def _in_best_groups(self, ranked: Float[Array, "tokens E"]) -> Float[Array, "tokens E"]:
        """Return −∞ in place of the scores outside a token's best groups of experts."""
        config = self.config
        grouped = ranked.reshape(len(ranked), config.n_group, -1)
        counted = 1 if config.group_score == "best" else min(2, grouped.shape[-1])
        best = jax.lax.top_k(grouped, counted)[0].sum(axis=-1)
        groups = jax.lax.top_k(best, config.topk_group)[1]
        may = jax.nn.one_hot(groups, config.n_group).sum(axis=1) > 0
        return jnp.where(may[..., None], grouped, -jnp.inf).reshape(ranked.shape)


class StackedMLPs(nnx.Module):
    """The feed-forwards of all experts, whose weights have an axis of experts in front."""

    def __init__(self, config: Experts.Config, spec: DecoderSpec, rngs: nnx.Rngs) -> None:
        self.spec, self.limit = spec, config.swiglu_limit
        d, f = spec.hidden_size, config.width(spec)
        linear = functools.partial(
            Linear, spec, rngs=rngs, bias=config.expert_bias, stack=config.num_experts
        )
        if spec.gated_mlp:
            self.gate_proj = linear(d, f, axes=COLUMN_PARALLEL)
        self.up_proj = linear(d, f, axes=COLUMN_PARALLEL)
        self.down_proj = linear(f, d, axes=ROW_PARALLEL)

    def __call__(
        self, rows: Float[Array, "rows D"], uses: Int[Array, " E"]
    ) -> Float[Array, "rows D"]:
        """Compute each row by its expert: the first uses[0] rows by the first one, and so on."""
        low_precision, by_row = self.spec.low_precision, None
        if self._has_kernel(rows, uses):
            kernels = (p.factor for p in (self.gate_proj, self.up_proj, self.down_proj))
            wide = (array.astype("float32") for array in (rows, *kernels))
            return gated_feed_forward(*wide, low_precision, uses).astype(rows.dtype)
        if self.up_proj.bias is not None:
            by_row = jnp.repeat(jnp.arange(uses.size), uses, total_repeat_length=rows.shape[0])

        def product(linear: Linear, x: Float[Array, "rows _"]) -> Float[Array, "rows _"]:
            y = project(x, linear.factor, low_precision, uses)
            if linear.bias is None:
                return y
            # in float32, as its derivative adds up the rows
            bias = linear.bias[...].astype("float32")[by_row]
            return (y.astype("float32") + bias).astype(y.dtype)

        up = projected(product(self.up_proj, rows))
        if self.spec.gated_mlp:
            up = self._gated(projected(product(self.gate_proj, rows)), up)
        else:
            up = ACTIVATIONS[self.spec.activation](up)
        return product(self.down_proj, up)

    def _has_kernel(self, rows: Float[Array, "rows D"], uses: Int[Array, " E"]) -> bool:
        """Whether our kernel for CPUs computes the hidden layer, as in `MLP`."""
        spec, w_up = self.spec, self.up_proj.factor
        is_llama = spec.gated_mlp and spec.activation == "silu" and self.limit is None
        if not is_llama or self.up_proj.bias is not None:
            return False
        if spec.low_precision and w_up.shape[-1] % 2:
            return False
        return has_kernels(rows, w_up, uses, low_precision=spec.low_precision)

    def _gated(self, gate: Float[Array, "rows F"], up: Float[Array, "rows F"]) -> Array:
        if self.limit is None:
            return ACTIVATIONS[self.spec.activation](gate) * up
        gate = jnp.minimum(gate, self.limit)
        up = jnp.clip(up, -self.limit, self.limit)
        return (up + 1) * gate * jax.nn.sigmoid(_ALPHA * gate)
