"""Negative log-likelihood of tokens, without ever holding the logits of all of them.

Shapes: D model, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Logits held at once: 256 MiB. With fewer rows, the kernel's D·V numbers would be read too often.
MOST_LOGITS = 2**26


def token_nll(
    hidden: Float[Array, "tokens D"],
    kernel: Float[Array, "D V"],
    targets: Int[Array, " tokens"],
    most_logits: int = MOST_LOGITS,
) -> Float[Array, " tokens"]:
    """ln Σ_v exp(h_t·K_v) − h_t·K_target, in nats, float32.

    At most `most_logits` logits, or those of one token, exist at a time. If all of them fit, they
    are kept for the backward pass; if not, it recomputes them chunk by chunk.
    """
    tokens, vocabulary = hidden.shape[0], kernel.shape[1]
    if tokens * vocabulary <= most_logits:
        return _nll(hidden, kernel, targets)
    size = max(1, most_logits // vocabulary)
    padding = -tokens % size
    hidden = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, size, hidden.shape[1])
    targets = jnp.pad(targets, (0, padding)).reshape(-1, size)
    # checkpoint: without it the scan would keep every chunk's logits for its backward pass
    chunk = jax.checkpoint(lambda h, t: _nll(h, kernel, t))
    return jax.lax.map(lambda x: chunk(*x), (hidden, targets)).reshape(-1)[:tokens]


def _nll(
    hidden: Float[Array, "tokens D"], kernel: Float[Array, "D V"], targets: Int[Array, " tokens"]
) -> Float[Array, " tokens"]:
    logits = jnp.matmul(hidden, kernel, preferred_element_type=jnp.float32)
    target_logits = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - target_logits
