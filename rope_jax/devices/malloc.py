"""Tuning the C library's malloc for XLA on CPU. Does nothing where that is not glibc."""

import contextlib
import ctypes
import mmap

# glibc's mallopt(3): option numbers from malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_HEAP_BYTES = 2**32


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next step; call this before JAX starts its threads.

    By default the next step waits for every page to be mapped and zeroed again: a sixth of its time
    in the demo. All threads share the main arena, the only one that can grow without mmap. Huge
    pages, for the heap's first 4 GiB, save another 2 to 7%.
    """
    libc = _set({_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1})
    if libc is None:
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.free.argtypes = (ctypes.c_void_p,)
    # This only reserves addresses: no page is touched, and the freed block stays in the heap.
    if heap := libc.malloc(_HEAP_BYTES):
        first = -(-heap // mmap.PAGESIZE) * mmap.PAGESIZE
        libc.madvise(first, heap + _HEAP_BYTES - first, mmap.MADV_HUGEPAGE)
        libc.free(heap)


def return_freed_memory() -> None:
    """Make glibc return freed blocks of a megabyte or more to the system at once.

    By default the threshold follows the sizes in use: an import of 4 GB took 8% more.
    """
    _set({_M_MMAP_THRESHOLD: 2**20, _M_ARENA_MAX: 2})


def _set(options: dict[int, int]) -> ctypes.CDLL | None:
    """Set options of glibc's malloc and return the library; None if there is none."""
    with contextlib.suppress(OSError, AttributeError):  # another C library, or not Linux
        libc = ctypes.CDLL("libc.so.6")
        for option, value in options.items():
            libc.mallopt(option, value)
        return libc
    return None
