"""No network, the CPU, and JAX at its strictest: no implicit promotion of dtypes or ranks."""

import contextlib
import os

import pytest

# Read when jax and Hugging Face's libraries are imported, so set before any test does.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def compiled_quickly():
    """A context in which XLA optimizes little: a third of the compilation time, one arithmetic.

    For tests of what a program computes, not of how XLA rounds it.
    """

    @contextlib.contextmanager
    def context():
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            yield
        finally:
            jax.config.update("jax_disable_most_optimizations", False)

    return context
