"""The compiled kernels, made known to JAX."""

import ctypes
import functools
import platform
from pathlib import Path

import jax

from rope_jax.errors import UserError
from rope_jax.kernels.naming import library as library_path

# The names under which XLA calls them, and those of the functions in calls.cc.
ATTENTION_FORWARD = "rope_jax_attention_forward"
ATTENTION_BACKWARD = "rope_jax_attention_backward"
PROJECTION = "rope_jax_projection"
GATED_FORWARD, GATED_BACKWARD = "rope_jax_gated_forward", "rope_jax_gated_backward"
WEIGHT_GRADIENT = "rope_jax_weight_gradient"
NORM_FORWARD, NORM_BACKWARD = "rope_jax_norm_forward", "rope_jax_norm_backward"
_FUNCTIONS = {
    ATTENTION_FORWARD: "attention_forward",
    ATTENTION_BACKWARD: "attention_backward",
    PROJECTION: "projection",
    GATED_FORWARD: "gated_forward",
    GATED_BACKWARD: "gated_backward",
    WEIGHT_GRADIENT: "weight_gradient",
    NORM_FORWARD: "norm_forward",
    NORM_BACKWARD: "norm_backward",
}


@functools.cache
def load_kernels() -> str | None:
    """Register the kernels with JAX, once; return the instruction set that they use on this CPU.

    None: these sources were not compiled for this jaxlib. UserError if what was compiled cannot be
    loaded.
    """
    path = library_path()
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be loaded ({error}); install rope-jax again") from None
    for name, function in _FUNCTIONS.items():
        handler = jax.ffi.pycapsule(getattr(library, function))
        jax.ffi.register_ffi_target(name, handler, platform="cpu")
    library.instruction_set.restype = ctypes.c_char_p
    return str(library.instruction_set().decode())


def has_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's CPU has AMX, whose products of bfloat16 are its fastest.

    cpuinfo: what Linux says about the CPU; without such a file, the answer is no.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        text = cpuinfo.read_text()
    except OSError:
        return False
    return any("amx_bf16" in line.split() for line in text.splitlines() if line[:5] == "flags")
