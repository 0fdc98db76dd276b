"""What a training step changes, and the step itself: one jitted pure function.

Shapes: B batch, T length, L layers, P position buckets.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from rope_jax.data.batches import Batch
from rope_jax.model.decoder import LanguageModel, Params
from rope_jax.rope import Rotary

FIRST_BUCKET = 16


class TrainState(NamedTuple):
    """Parameters and optimizer state; the step is the optimizer's own count."""

    params: Params
    opt_state: optax.OptState


def fresh_state(
    model: LanguageModel, optimizer: optax.GradientTransformation, seed: int
) -> TrainState:
    """What training begins with; the same on any number of devices."""
    params = model.init(seed)
    return TrainState(params, optimizer.init(params))


class LossSums(NamedTuple):
    """Sums over scored tokens, by bucket of position: nats, tokens."""

    nll: Float[Array, " P"]
    tokens: Float[Array, " P"]

    def mean(self) -> Float[Array, ""]:
        """Nats a token."""
        return self.nll.sum() / self.tokens.sum()


def bucket_edges(seq_len: int) -> list[int]:
    """First positions of the buckets: 0, 16, 32, 64, … below seq_len."""
    edges = [0]
    while (edge := max(FIRST_BUCKET, 2 * edges[-1])) < seq_len:
        edges.append(edge)
    return edges


QueryScales = Callable[[Int[Array, "B T"]], Float[Array, "L|1 B T"]]


def loss_sums(
    model: LanguageModel,
    params: Params,
    batch: Batch,
    rotary: Rotary,
    query_scales: QueryScales | None = None,
) -> LossSums:
    """Weighted negative log-likelihood of a batch, by bucket of position within the document.

    query_scales: of the batch's own positions; None: those that `rotary` holds.
    """
    if query_scales is not None:
        rotary = rotary._replace(query_scale=query_scales(batch.positions))
    nll = model.nll(params, batch.tokens, batch.targets, batch.positions, batch.segment_ids, rotary)
    edges = jnp.asarray(bucket_edges(batch.tokens.shape[1]), jnp.int32)
    bucket = (batch.positions[..., None] >= edges[None, None]).sum(-1) - 1
    one_hot = jax.nn.one_hot(bucket, edges.size, dtype=jnp.float32)
    return LossSums(
        jnp.einsum("bt,btp->p", nll * batch.weights, one_hot),
        jnp.einsum("bt,btp->p", batch.weights, one_hot),
    )


def make_train_step(
    model: LanguageModel,
    optimizer: optax.GradientTransformation,
    grad_accumulation: int = 1,
    out_shardings: Any = None,
    query_scales: QueryScales | None = None,
) -> Callable[[TrainState, Batch, Rotary], tuple[TrainState, dict[str, Any]]]:
    """The jitted step. Donates the state: what went in must not be used again.

    The batch [B, T] is cut into `grad_accumulation` micro-batches whose gradients of loss summed,
    over the tokens of all, are added: the same step however it is cut.
    out_shardings: where (state, metrics) are to lie; None: where XLA puts them.
    query_scales: as in `loss_sums`.
    """

    def share(
        params: Params, batch: Batch, rotary: Rotary, tokens: Array
    ) -> tuple[Array, LossSums]:
        sums = loss_sums(model, params, batch, rotary, query_scales)
        # dividing the loss, not the gradient: one number instead of all parameters
        return sums.nll.sum() / tokens, sums

    gradient = jax.grad(share, has_aux=True)

    def step(state: TrainState, batch: Batch, rotary: Rotary) -> tuple[TrainState, dict[str, Any]]:
        tokens = batch.weights.sum()
        if grad_accumulation == 1:
            grads, sums = gradient(state.params, batch, rotary, tokens)
        else:
            cut = jax.tree.map(lambda x: x.reshape(grad_accumulation, -1, *x.shape[1:]), batch)
            one = jax.tree.map(lambda x: x[0], cut)
            zeros = jax.tree.map(
                lambda x: jnp.zeros(x.shape, x.dtype),
                jax.eval_shape(gradient, state.params, one, rotary, tokens),
            )

            def accumulate(total: Any, micro_batch: Batch) -> tuple[Any, None]:
                new = gradient(state.params, micro_batch, rotary, tokens)
                return jax.tree.map(jnp.add, total, new), None

            (grads, sums), _ = jax.lax.scan(accumulate, zeros, cut)
        # optax mixes its integer count with floats
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"sums": sums, "grad_norm": optax.tree.norm(grads)}
        return TrainState(params, opt_state), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=out_shardings)
