"""The mark of tests that need the compiled kernels."""

import pytest

from rope_jax.kernels.loading import load_kernels

needs_kernels = pytest.mark.skipif(load_kernels() is None, reason="the kernels are not compiled")
