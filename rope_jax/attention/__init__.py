"""Causal attention: one signature, several backends, chosen by name."""

from rope_jax.attention.backends import (
    BACKENDS,
    Attention,
    attend,
    check_backend,
    choose_backend,
)
from rope_jax.attention.blockwise import banded_blockwise, blockwise_attention

__all__ = [
    "BACKENDS",
    "Attention",
    "attend",
    "banded_blockwise",
    "blockwise_attention",
    "check_backend",
    "choose_backend",
]
