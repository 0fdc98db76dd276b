"""The compiled kernels, made known to JAX."""

import ctypes
import functools
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rope_jax.errors import UserError
from rope_jax.kernels.naming import library as kernels_file

# The functions in calls.cc. XLA knows them as rope_jax_….
_FUNCTIONS = (
    *("attention_forward", "attention_backward", "projection", "weight_gradient"),
    *("gated_forward", "gated_backward", "norm_forward", "norm_backward"),
)


Results = jax.ShapeDtypeStruct | tuple[jax.ShapeDtypeStruct, ...]


@functools.cache
def load_kernels() -> str | None:
    """Register the kernels with JAX, once; return the instruction set that they use on this CPU.

    None: these sources were not compiled for this jaxlib. UserError if what was compiled cannot be
    loaded.
    """
    path = kernels_file()
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be loaded ({error}); install rope-jax again") from None
    for function in _FUNCTIONS:
        handler = jax.ffi.pycapsule(getattr(library, function))
        jax.ffi.register_ffi_target(f"rope_jax_{function}", handler, platform="cpu")
    library.instruction_set.restype = ctypes.c_char_p
    return str(library.instruction_set().decode())


def call_kernel(
    function: str, results: Results, *arrays: Array | np.ndarray, **attributes: object
) -> Any:
    """Call a function of calls.cc inside a jitted program. results: shapes and dtypes."""
    call = jax.ffi.ffi_call(f"rope_jax_{function}", results, vmap_method="sequential")
    return call(*arrays, **attributes)


def with_kernel(
    kernel: Callable[..., Any], plain: Callable[..., Any], *arrays: Array, usable: bool = True
) -> Any:
    """kernel(*arrays) on a CPU, if kernels were compiled and are usable; else plain(*arrays)."""
    if not usable or load_kernels() is None:
        return plain(*arrays)
    return jax.lax.platform_dependent(*arrays, cpu=kernel, default=plain)


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """Return the shape of a kernel's float32 result."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def has_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether XLA uses this CPU's AMX, whose products of bfloat16 are its fastest."""
    flags = os.environ.get("XLA_FLAGS", "")
    limits = re.findall(r"--xla_cpu_max_isa=(SSE|AVX)?", flags, re.IGNORECASE)
    if any(limits[-1:]) or platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        text = cpuinfo.read_text()
    except OSError:
        return False
    return any("amx_bf16" in line.split() for line in text.splitlines() if line[:5] == "flags")
