"""Our folder in the user's cache directory, and the compiled programs in it. Imports no jax."""

import contextlib
import hashlib
import os
from pathlib import Path

_MAX_BYTES = 2**30
_MIN_SECONDS = 0.3  # to compile: faster programs are not worth a file


def user_cache() -> Path:
    """Return our folder in the user's cache directory ($XDG_CACHE_HOME, or ~/.cache)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rope_jax"


def keep_compiled_programs() -> None:
    """Have JAX cache compiled programs for later runs; call before importing jax.

    Does nothing if JAX_COMPILATION_CACHE_DIR is set, or if our folder is not writable.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = user_cache() / "compiled" / _machine()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _prune(folder)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(_MIN_SECONDS))


def _prune(folder: Path) -> None:
    """Delete the programs used least recently, beyond 1 GiB.

    JAX_COMPILATION_CACHE_MAX_SIZE does not do: a process killed while it writes an entry leaves it
    without a time stamp, and every later process warns about it at every compilation.
    """
    entries = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.is_file()]
    entries.sort(key=lambda found: found[0].st_atime, reverse=True)
    kept = 0
    for status, path in entries:
        kept += status.st_size
        if kept > _MAX_BYTES:
            with contextlib.suppress(FileNotFoundError):  # another process deleted it first
                os.remove(path)


def _machine() -> str:
    """Return a name for this kind of processor; several kinds may share a home directory.

    Programs for the CPU are machine code, which crashes on a processor that lacks an instruction.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux: JAX's own cache key has to suffice
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()[:12]
