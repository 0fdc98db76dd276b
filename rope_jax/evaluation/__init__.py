"""Perplexity against context length, for any JAX language model."""

from rope_jax.evaluation.reader import LastNLLFunction, NLLFunction
from rope_jax.evaluation.statistics import Estimate, Sums, mean_nll, paired_difference
from rope_jax.evaluation.sweep import JournalEntry, Measurement, SweepResult, sweep

__all__ = [
    "Estimate",
    "JournalEntry",
    "LastNLLFunction",
    "Measurement",
    "NLLFunction",
    "Sums",
    "SweepResult",
    "mean_nll",
    "paired_difference",
    "sweep",
]
