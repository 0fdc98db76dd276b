"""Perplexity against context length, for any JAX language model."""

from rope_jax.evaluation.sweep import SweepResult, sweep

__all__ = ["SweepResult", "sweep"]
