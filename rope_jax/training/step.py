"""The training state, the training step as one jitted pure function, and what is logged of it.

Shapes: B batch, T length, P buckets of document positions; counts: negative distances, then one
per bucket.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from rope_jax.attention.blocks import document_positions
from rope_jax.data.batches import Batch, distance_edges
from rope_jax.model.decoder import DecoderInputs, LanguageModel, Params
from rope_jax.rope import Rotary
from rope_jax.runs.logs import Scalars
from rope_jax.training.trainable import Trainable


class TrainState(NamedTuple):
    """Parameters and optimizer state, which contains the step count."""

    params: Params
    opt_state: optax.OptState


def fresh_state(
    model: LanguageModel, optimizer: optax.GradientTransformation, seed: int
) -> TrainState:
    """Return the initial training state, the same on any number of devices."""
    params = model.init(seed)
    return TrainState(params, optimizer.init(params))


class LossSums(NamedTuple):
    """Sums of nats, and of tokens, by bucket of document positions."""

    nll: Float[Array | np.ndarray, " P"]
    tokens: Float[Array | np.ndarray, " P"]

    def mean(self) -> Float[Array | np.ndarray, ""] | np.floating[Any]:
        """Return the mean loss, nats per token."""
        return self.nll.sum() / self.tokens.sum()


class StepMetrics(NamedTuple):
    """Measurements made by a training step.

    auxiliary: the auxiliary loss that it added to the mean loss, if any.
    """

    sums: LossSums
    grad_norm: Float[Array | np.ndarray, ""]
    auxiliary: Float[Array | np.ndarray, ""] | None = None


def bucket_edges(seq_len: int) -> list[int]:
    """Return the first document position of each bucket: 0, 16, 32, 64, … below seq_len."""
    doubled = (16 * 2**k for k in itertools.count())
    return [0, *itertools.takewhile(lambda edge: edge < seq_len, doubled)]


# Adds position-dependent parts (query scale, map bands) to the frequencies.
Positioning = Callable[[Rotary, Int[Array, "B T"]], Rotary]
_gradient = functools.partial(jax.grad, has_aux=True)
TrainStep = Callable[[TrainState, Batch, Rotary], tuple[TrainState, StepMetrics]]


def loss_sums(
    model: LanguageModel,
    params: Params,
    batch: Batch,
    rotary: Rotary,
    *,
    masks_documents: bool = True,
) -> LossSums:
    """Weighted sums of a batch's negative log-likelihood, by document position.

    masks_documents: whether a token sees only its own document, not all of its row.
    """
    return _sums(model.nll(params, _windows(batch, rotary, masks_documents)), batch)


def _windows(batch: Batch, rotary: Rotary, masks_documents: bool) -> DecoderInputs:
    # Equal ids would give the same result, but kernels then need a mask of all pairs of tokens.
    segment_ids = batch.segment_ids if masks_documents else None
    return DecoderInputs(batch.tokens, batch.targets, batch.positions, segment_ids, rotary)


def _sums(nll: Float[Array, "B T"], batch: Batch) -> LossSums:
    edges = jnp.asarray(bucket_edges(batch.tokens.shape[1]), jnp.int32)
    positions = document_positions(batch.segment_ids)
    bucket = (positions[..., None] >= edges[None, None]).sum(-1) - 1
    one_hot = jax.nn.one_hot(bucket, edges.size, dtype=jnp.float32)
    return LossSums(
        jnp.einsum("bt,btp->p", nll * batch.weights, one_hot),
        jnp.einsum("bt,btp->p", batch.weights, one_hot),
    )


def make_train_step(
    model: LanguageModel,
    optimizer: optax.GradientTransformation,
    grad_accumulation: int = 1,
    out_shardings: tuple[TrainState, jax.sharding.Sharding] | None = None,
    positioning: Positioning | None = None,
    gradient_of: Callable[..., Callable[..., tuple[Any, Any]]] = _gradient,
    masks_documents: bool = True,
    trainable: Trainable | None = None,
) -> TrainStep:
    """Return the jitted step. It donates the state passed in, which must not be used again.

    The batch [B, T] is split into `grad_accumulation` micro-batches. Each one's loss is divided by
    the number of tokens in the whole batch, so the step does not depend on the split. An auxiliary
    loss does: it is computed for each micro-batch, and weighted by its share of the tokens.

    out_shardings: of (state, metrics). gradient_of: `Placement.gradient` of the step's mesh.
    masks_documents: as for `loss_sums`. trainable: what the optimizer is around; None: everything.
    """

    def loss_share(
        params: Params, batch: Batch, rotary: Rotary, tokens: Float[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[LossSums, Float[Array, ""] | None]]:
        windows = _windows(batch, rotary, masks_documents)
        nll, auxiliary = model.nll_and_auxiliary(params, windows)
        sums = _sums(nll, batch)
        # Divide the loss, not the gradient: one number instead of one per parameter.
        loss = sums.nll.sum() / tokens
        if auxiliary is not None:  # the mean over all rows, as of the loss
            auxiliary = auxiliary * batch.weights.sum() / tokens
            loss = loss + auxiliary
        return loss, (sums, auxiliary)

    gradient = gradient_of(loss_share)

    def step(state: TrainState, batch: Batch, rotary: Rotary) -> tuple[TrainState, StepMetrics]:
        tokens = batch.weights.sum()
        if positioning is not None:
            rotary = positioning(rotary, batch.positions)
        if grad_accumulation == 1:
            grads, (sums, auxiliary) = gradient(state.params, batch, rotary, tokens)
        else:
            micro_batches = (
                jax.tree.map(lambda x: x.reshape(grad_accumulation, -1, *x.shape[1:]), batch),
                jax.tree.map(functools.partial(_split_rows, parts=grad_accumulation), rotary),
            )
            first = jax.tree.map(lambda x: x[0], micro_batches)
            zeros = jax.tree.map(
                lambda x: jnp.zeros(x.shape, x.dtype),
                jax.eval_shape(gradient, state.params, *first, tokens),
            )

            def accumulate(total: PyTree, micro_batch: tuple[Batch, Rotary]) -> tuple[PyTree, None]:
                new = gradient(state.params, *micro_batch, tokens)
                return jax.tree.map(jnp.add, total, new), None

            (grads, (sums, auxiliary)), _ = jax.lax.scan(accumulate, zeros, micro_batches)
        # optax mixes its integer count with floats
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        if trainable is not None:
            grads = trainable.gradient(grads, state.opt_state.factors)
        metrics = StepMetrics(sums, optax.tree.norm(grads), auxiliary)
        return TrainState(params, opt_state), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=out_shardings)


def _split_rows(leaf: Array | np.ndarray, parts: int) -> Array:
    """Split the axis of rows, the second of every leaf of a `Rotary`, into parts [parts, …].

    An axis of size 1, which all rows share, is repeated.
    """
    if leaf.shape[1] == 1:
        return jnp.broadcast_to(leaf, (parts, *leaf.shape))
    return jnp.moveaxis(leaf.reshape(leaf.shape[0], parts, -1, *leaf.shape[2:]), 1, 0)


def training_scalars(
    metrics: StepMetrics, learning_rate: float, tokens: int, seq_len: int
) -> Scalars:
    """Return the scalars of a training step. tokens: how many the run has trained on so far."""
    sums, edges = metrics.sums, bucket_edges(seq_len)
    losses, shares = sums.nll / np.maximum(sums.tokens, 1), sums.tokens / sums.tokens.sum()
    auxiliary = metrics.auxiliary
    return {
        "train/loss": float(sums.mean()),
        **({} if auxiliary is None else {"train/auxiliary_loss": float(auxiliary)}),
        "train/grad_norm": float(metrics.grad_norm),
        "train/learning_rate": learning_rate,
        "train/tokens": tokens,
        **_by_bucket("train_loss_at", edges, losses, seq_len),
        **_by_bucket("tokens_at", edges, shares, seq_len),
    }


def distance_scalars(pairs: Int[np.ndarray, " counts"], length: int) -> Scalars:
    """Return each bucket's share of the pairs, as `count_distances` counts them."""
    below, *shares = (pairs / pairs.sum()).tolist()
    scalars = {"distances/below-0": below} if below else {}
    return scalars | _by_bucket("distances", distance_edges(length), shares, length)


def validation_scalars(sums: LossSums, seq_len: int) -> Scalars:
    losses = sums.nll / np.maximum(sums.tokens, 1)
    by_position = _by_bucket("validation_loss_at", bucket_edges(seq_len), losses, seq_len)
    return {"validation/loss": float(sums.mean()), **by_position}


def total(parts: Sequence[LossSums]) -> LossSums:
    """Add up the sums of several batches, in float64."""
    columns = zip(*parts, strict=True)
    return LossSums(*(np.stack(column).sum(axis=0, dtype=np.float64) for column in columns))


def _by_bucket(
    name: str, edges: Sequence[int], values: Iterable[Any], length: int
) -> dict[str, float]:
    """Name the values of buckets that begin at these edges, such as "tokens_at/16-31"."""
    scalars = {}
    for (first, end), value in zip(itertools.pairwise([*edges, length]), values, strict=True):
        bucket = f"{first}-{end - 1}" if end > first + 1 else f"{first}"
        scalars[f"{name}/{bucket}"] = float(value)
    return scalars
