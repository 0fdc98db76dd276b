"""No network, the CPU, and JAX at its strictest: no implicit promotion of dtypes or ranks."""

import os

# Read when jax and Hugging Face's libraries are imported, so set before any test does.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
