"""Negative log-likelihood of tokens, without ever holding the logits of all of them.

Shapes: T tokens, D model, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Logits held at once: 256 MiB. Fewer rows would read the kernel, D·V numbers, too often.
MOST_LOGITS = 2**26


def token_nll(
    hidden: Float[Array, "T D"],
    kernel: Float[Array, "D V"],
    targets: Int[Array, " T"],
    most_logits: int = MOST_LOGITS,
) -> Float[Array, " T"]:
    """ln Σ_v exp(h_t·K_v) − h_t·K_target, nats, float32.

    At most `most_logits` logits (or one token's) exist at a time, in the backward pass as well,
    which computes them anew; fewer than that are computed at once and kept.
    """
    tokens, vocabulary = hidden.shape[0], kernel.shape[1]
    if tokens * vocabulary <= most_logits:
        return _nll(hidden, kernel, targets)
    size = max(1, most_logits // vocabulary)
    missing = -tokens % size
    hidden = jnp.pad(hidden, ((0, missing), (0, 0))).reshape(-1, size, hidden.shape[1])
    targets = jnp.pad(targets, (0, missing)).reshape(-1, size)
    # checkpoint: without it the scan would keep every chunk's logits for its backward pass
    chunk = jax.checkpoint(lambda h, t: _nll(h, kernel, t))
    return jax.lax.map(lambda x: chunk(*x), (hidden, targets)).reshape(-1)[:tokens]


def _nll(
    hidden: Float[Array, "T D"], kernel: Float[Array, "D V"], targets: Int[Array, " T"]
) -> Float[Array, " T"]:
    logits = jnp.matmul(hidden, kernel, preferred_element_type=jnp.float32)
    of_target = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - of_target
