"""Causal attention: one signature, several backends, chosen by name."""

from rope_jax.attention.backends import BACKENDS, Attention, attend, check_backend
from rope_jax.attention.blockwise import blockwise_attention

__all__ = ["BACKENDS", "Attention", "attend", "blockwise_attention", "check_backend"]
