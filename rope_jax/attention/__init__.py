"""Causal attention: one signature, several backends, chosen by name. Imports no jax."""

from rope_jax.attention.backends import BACKENDS, AttentionName, Backend, backend_names

__all__ = ["BACKENDS", "AttentionName", "Backend", "backend_names"]
