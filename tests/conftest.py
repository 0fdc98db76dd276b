"""No network, the CPU, and JAX at its strictest: no implicit promotion of dtypes or ranks."""

import os
from pathlib import Path

import pytest

# Read when jax and Hugging Face's libraries are imported, so set before any test does.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
# Programs that several tests, or the commands they start, compile are compiled once.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "jax")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module")
def compiled_quickly():
    """For a module of many small programs: XLA optimizes little, in half the time.

    For tests of what a program computes, not of how fast or how it is rounded.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
