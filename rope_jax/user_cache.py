"""What is kept between runs, in the user's cache directory. Imports no jax."""

import contextlib
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

    Whoever sets JAX_COMPILATION_CACHE_DIR has chosen: nothing is changed. Where our folder cannot
    be written, nothing is kept.
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
    """Keep at most 1 GiB, what was used last.

    Not by JAX_COMPILATION_CACHE_MAX_SIZE: a process killed while it writes an entry leaves that
    without its time stamp, and every later process warns of it at every compilation.
    """
    entries = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.is_file()]
    entries.sort(key=lambda found: found[0].st_atime, reverse=True)
    kept = 0
    for status, path in entries:
        kept += status.st_size
        if kept > _MAX_BYTES:
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                os.remove(path)


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
