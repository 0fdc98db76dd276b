"""How programs are compiled."""

import os
from typing import Any

import jax

# XLA's default on a CPU is 3, with which LLVM takes longer, and makes no faster programs:
# docs/performance.md. What accelerators' compilers make of the number has not been measured.
_ON_CPU = {"xla_backend_optimization_level": 2}


def compiler_options(platform: str) -> dict[str, Any] | None:
    """Return what `jax.jit` takes as `compiler_options` on "cpu", "gpu" or "tpu".

    None where XLA_FLAGS or JAX's configuration says how much to optimize: these would override it.
    """
    chosen = any(name in os.environ.get("XLA_FLAGS", "") for name in _ON_CPU)
    chosen |= jax.config.values["jax_disable_most_optimizations"]
    return _ON_CPU if platform == "cpu" and not chosen else None


def compiled(function: Any, first: Any, *others: Any) -> Any:
    """Compile a jitted function for arguments of these shapes, on the devices of the first one."""
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(first))
    devices = {device for sharding in shardings if sharding for device in sharding.device_set}
    platform = devices.pop().platform if devices else jax.default_backend()
    lowered = function.lower(first, *others)
    return lowered.compile(compiler_options=compiler_options(platform))
