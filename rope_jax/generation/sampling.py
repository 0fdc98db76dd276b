"""Choose the next token of each text from its logits.

Shapes: B texts, V vocabulary.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int, Int32

from rope_jax.rope.geometry import AnyArray

__all__ = ["GREEDY", "Sampling"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: as in transformers, by these fields in turn.

    temperature: T, which divides the logits; 0: the first of the likeliest tokens (greedy).
    top_k: only tokens whose logits are at least the k-th highest.
    top_p: without the least likely tokens, while their probabilities add up to at most 1 − p
        (Holtzman et al., arXiv 1904.09751). Of equal ones at the border, all stay, of which
        transformers keeps some in the order of an unstable sort.
    seed: of the draws, which differ between texts and steps.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    @functools.partial(jax.jit, static_argnums=0)
    def choose(
        self, logits: Float32[Array, "B V"], step: int | Int[AnyArray, ""]
    ) -> Int32[Array, " B"]:
        """Return the token that follows each text at a step. Compiled once for each seed."""
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        return jax.random.categorical(key, self.filtered(logits)).astype(jnp.int32)

    def filtered(self, logits: Float32[Array, "B V"]) -> Float32[Array, "B V"]:
        """Return logits / T; those of tokens that cannot be drawn are −∞."""
        logits = logits / self.temperature
        if self.top_k is not None:
            top, _ = jax.lax.top_k(logits, min(self.top_k, logits.shape[-1]))
            logits = jnp.where(logits < top[:, -1:], -jnp.inf, logits)
        if self.top_p < 1:
            logits = jnp.where(_is_in_nucleus(logits, self.top_p), logits, -jnp.inf)
        return logits


def _is_in_nucleus(logits: Float32[Array, "B V"], top_p: float) -> Bool[Array, "B V"]:
    """Return which tokens top-p keeps, by bisection: a CPU sorts as long as a small model reads."""
    highest, p = jnp.max(logits, axis=-1, keepdims=True), jax.nn.softmax(logits)

    def halve(_: Int[Array, ""], bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        below = jnp.sum(jnp.where(logits <= middle, p, 0), axis=-1, keepdims=True)
        is_dropped = below <= 1 - top_p
        return jnp.where(is_dropped, middle, low), jnp.where(is_dropped, high, middle)

    # e^-104 is 0 in float32, and 104 / 2^32 less than the spacing of logits
    low, _ = jax.lax.fori_loop(0, 32, halve, (highest - 104, highest))
    return (logits > low) | (logits == highest)


GREEDY = Sampling()
