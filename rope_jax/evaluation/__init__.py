"""Perplexity against context length, for any JAX language model."""

from rope_jax.evaluation.measure import JournalEntry, LastNLLFunction
from rope_jax.evaluation.results import Measurement, SweepResult
from rope_jax.evaluation.sweep import NLLFunction, sweep
from rope_jax.results.statistics import Estimate, Sums, mean_nll, paired_difference

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
