"""How the C library hands out memory to XLA on CPU."""

import ctypes
import sys

# glibc's mallopt(3): option numbers from malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, for the next step to take; call before importing jax.

    XLA's CPU client allocates a step's temporary buffers (141 MB in the demo) and frees them
    after it. glibc gives so large a block back to the system, and the next step waits for every
    page to be mapped and zeroed anew: 35,000 page faults, a sixth of the step's time. One arena,
    because only the main one can grow without mapping. Other systems: no effect.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
