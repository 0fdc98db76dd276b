"""Texts that a model continues."""

from rope_jax.generation.decoding import CachedDecoder, generate
from rope_jax.generation.sampling import GREEDY, Sampling

__all__ = ["GREEDY", "CachedDecoder", "Sampling", "generate"]
