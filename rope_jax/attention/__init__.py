"""Causal attention: one signature, several backends, chosen by name."""

from rope_jax.attention.backends import BACKENDS, Attention, check_backend
from rope_jax.attention.blockwise import blockwise_attention

__all__ = ["BACKENDS", "Attention", "blockwise_attention", "check_backend"]
