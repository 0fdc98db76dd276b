"""Texts that a model continues."""

from rope_jax.generation.decoding import CachedDecoder, generate
from rope_jax.generation.sampling import Sampling

__all__ = ["CachedDecoder", "Sampling", "generate"]
