"""Causal attention: one signature, several backends, chosen by name. Imports no jax."""

from rope_jax.attention.backends import BACKENDS, AttentionName, Backend, softmax_names

__all__ = ["BACKENDS", "AttentionName", "Backend", "softmax_names"]
