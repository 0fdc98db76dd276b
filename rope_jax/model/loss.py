"""Negative log-likelihood of tokens, with a bound on the logits held at once.

Shapes: D model, V vocabulary (this device's part of it), chunk: tokens per chunk, m chunks.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from rope_jax.collectives import SINGLE_DEVICE, Collectives

# 256 MiB in float32. Smaller chunks would read the kernel's D·V numbers too often.
MAX_LOGITS = 2**26


class Scores(NamedTuple):
    """What a model says of targets."""

    nll: Float32[Array, "*targets"]
    """−ln p(target | the tokens before it), in nats."""
    is_top1: Bool[Array, "*targets"]
    """Whether the target is more likely than every other token."""


def token_nll(
    hidden: Float[Array, "tokens D"],
    kernel: Float[Array, "D V"],
    targets: Int[Array, " tokens"],
    max_logits: int | None = None,
    softcap: float | None = None,
    mesh: Collectives = SINGLE_DEVICE,
) -> Float32[Array, " tokens"]:
    """ln Σ_v exp(z_tv) − z_t,target with logits z_t = h_t·K, in nats, float32.

    softcap: c, which bounds the logits to c·tanh(z/c) (Gemma 2, arXiv 2408.00118, §2); None: none.
    mesh: its devices may split the vocabulary: each has V of the kernel's columns, and logits stay
        where they are. Three numbers per token are exchanged.

    At most `max_logits` (None: MAX_LOGITS) logits exist at a time, or one token's. If all of them
    fit, they are kept for the backward pass. If not, it keeps one number per token, and computes
    the logits again chunk by chunk; it is then differentiable in reverse mode only.
    """
    size = _tokens_at_once(kernel, max_logits)
    if targets.size <= size:
        logits = logits_of(hidden, kernel, softcap)
        return _logsumexp(logits, mesh) - _target_logits(logits, targets, mesh)
    return _nll_in_chunks(size, softcap, mesh, hidden, kernel, targets)


def token_scores(
    hidden: Float[Array, "tokens D"],
    kernel: Float[Array, "D V"],
    targets: Int[Array, " tokens"],
    max_logits: int | None = None,
    softcap: float | None = None,
    mesh: Collectives = SINGLE_DEVICE,
) -> Scores:
    """`token_nll`, and whether each target is the model's first choice, without ties.

    No derivative is taken of it, so it keeps no logits, whatever their number is.
    """

    def chunk(x: tuple[Array, Array]) -> Scores:
        logits = logits_of(x[0], kernel, softcap)
        target = _target_logits(logits, x[1], mesh)
        as_likely = mesh.sum_over_tensor((logits >= target[:, None]).sum(-1, dtype=jnp.int32))
        return Scores(_logsumexp(logits, mesh) - target, as_likely == 1)

    size = _tokens_at_once(kernel, max_logits)
    if targets.size <= size:
        return chunk((hidden, targets))
    return Scores(*_by_chunk(chunk, size, hidden, targets))


def _tokens_at_once(kernel: Float[Array, "D V"], max_logits: int | None) -> int:
    return max(1, (MAX_LOGITS if max_logits is None else max_logits) // kernel.shape[1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _nll_in_chunks(
    size: int, softcap: float | None, mesh: Collectives, *arrays: Array
) -> Float32[Array, " tokens"]:
    return _forward(size, softcap, mesh, *arrays)[0]


def _forward(
    size: int,
    softcap: float | None,
    mesh: Collectives,
    hidden: Float[Array, "tokens D"],
    kernel: Float[Array, "D V"],
    targets: Int[Array, " tokens"],
) -> tuple[Float32[Array, " tokens"], tuple[Array, ...]]:

    def chunk(x: tuple[Array, Array]) -> tuple[Array, Array]:
        logits = logits_of(x[0], kernel, softcap)
        lse = _logsumexp(logits, mesh)
        return lse - _target_logits(logits, x[1], mesh), lse

    nll, lse = _by_chunk(chunk, size, hidden, targets)
    return nll, (hidden, kernel, targets, lse)


def _backward(
    size: int,
    softcap: float | None,
    mesh: Collectives,
    saved: tuple[Array, ...],
    dnll: Float32[Array, " tokens"],
) -> tuple[Float[Array, "tokens D"], Float[Array, "D V"], None]:
    """Gradients with respect to hidden states and kernel.

    For each token, dz_v = (exp(z_v − lse) − 1[v = target])·dnll, times 1 − (z_v/c)² with a cap.
    Then dh = dz·Kᵀ and dK = Σ_t h_tᵀ·dz_t, which is summed in float32 whatever the dtypes are.
    """
    hidden, kernel, targets, lse = saved
    dnll = mesh.sum_over_tensor(dnll)  # every device that shares the vocabulary returned the loss
    first = mesh.own_vocabulary(kernel.shape[1])

    def chunk(dkernel: Array, x: tuple[Array, ...]) -> tuple[Array, Array]:
        h, target, log_sum, weight = x
        logits = logits_of(h, kernel, softcap)
        is_target = first + jnp.arange(kernel.shape[1])[None] == target[:, None]
        dlogits = jnp.exp(logits - log_sum[:, None]) - is_target.astype(jnp.float32)
        dlogits = dlogits * weight[:, None]
        if softcap is not None:
            dlogits = dlogits * (1 - (logits / softcap) ** 2)
        dlogits = dlogits.astype(h.dtype)
        dkernel = dkernel + jnp.matmul(h.T, dlogits, preferred_element_type=jnp.float32)
        dh = jnp.matmul(dlogits, kernel.T, preferred_element_type=jnp.float32)
        return dkernel, dh.astype(h.dtype)

    # the padding has dnll = 0
    chunks = tuple(_cut(x, size) for x in (hidden, targets, lse, dnll))
    dkernel, dhidden = jax.lax.scan(chunk, jnp.zeros(kernel.shape, jnp.float32), chunks)
    dhidden = dhidden.reshape(-1, hidden.shape[1])[: hidden.shape[0]]
    return dhidden, dkernel.astype(kernel.dtype), None


_nll_in_chunks.defvjp(_forward, _backward)


def logits_of(
    hidden: Float[Array, "chunk D"], kernel: Float[Array, "D V"], softcap: float | None
) -> Float32[Array, "chunk V"]:
    logits = jnp.matmul(hidden, kernel, preferred_element_type=jnp.float32)
    return logits if softcap is None else softcap * jnp.tanh(logits / softcap)


def _logsumexp(logits: Float32[Array, "chunk V"], mesh: Collectives) -> Float32[Array, " chunk"]:
    if mesh.tensor == 1:
        return jax.nn.logsumexp(logits, axis=-1)
    largest = mesh.max_over_tensor(logits.max(-1))
    return largest + jnp.log(mesh.sum_over_tensor(jnp.exp(logits - largest[:, None]).sum(-1)))


def _target_logits(
    logits: Float32[Array, "chunk V"], targets: Int[Array, " chunk"], mesh: Collectives
) -> Float32[Array, " chunk"]:
    """Return the logits of the targets, which another device may have."""
    if mesh.tensor == 1:
        return jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    size = logits.shape[1]
    column = targets - mesh.own_vocabulary(size)
    values = jnp.take_along_axis(logits, jnp.clip(column, 0, size - 1)[:, None], axis=-1)[:, 0]
    return mesh.sum_over_tensor(jnp.where((column >= 0) & (column < size), values, 0.0))


def _by_chunk(chunk: Callable[..., Any], size: int, *arrays: Array) -> list[Array]:
    """Return the results of chunk(arrays of `size` tokens), one after the other, of all tokens."""
    results = jax.lax.map(chunk, tuple(_cut(x, size) for x in arrays))
    return [x.reshape(-1)[: arrays[0].shape[0]] for x in results]


def _cut(x: Array, size: int) -> Array:
    """Cut [tokens, …] into [m, chunk, …], padded with zeros at the end."""
    padded = jnp.pad(x, ((0, -x.shape[0] % size), *((0, 0),) * (x.ndim - 1)))
    return padded.reshape(-1, size, *x.shape[1:])
