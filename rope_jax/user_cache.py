"""What is kept between runs, in the user's cache directory. Imports no jax."""

import hashlib
import os
from pathlib import Path

_MAX_BYTES = 2**30
_MIN_SECONDS = 0.3


def user_cache() -> Path:
    """Our folder in the user's cache directory ($XDG_CACHE_HOME, or ~/.cache)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rope_jax"


def keep_compiled_programs() -> None:
    """Have JAX keep what it compiles for the next run; call before importing jax.

    At most 1 GiB, the least recently used going first. Who sets JAX_COMPILATION_CACHE_DIR has
    chosen: left as it is. Where the folder cannot be written, nothing is kept.
    """
    folder = user_cache() / "compiled" / _machine()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(_MAX_BYTES))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(_MIN_SECONDS))


def _machine() -> str:
    """A name for this kind of processor: a home directory may be shared by several kinds.

    Programs for the CPU are machine code; on a processor that lacks an instruction they die.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux: JAX's own key has to do
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()[:12]
