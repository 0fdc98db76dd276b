"""Runs in lm-evaluation-harness. Importing this registers its model `rope_jax`."""

from rope_jax.harness.model import RegisteredModel

__all__ = ["RegisteredModel"]
