"""Our folder in the user's cache directory, and the compiled programs in it."""

import contextlib
import hashlib
import os
import re
import warnings
from pathlib import Path

import jax

_MAX_BYTES = 2**30
_MIN_SECONDS = 0.3  # to compile: faster programs are not worth a file


def user_cache() -> Path:
    """Return our folder in the user's cache directory. RuntimeError: there is no home directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rope_jax"


def keep_compiled_programs() -> None:
    """Have JAX cache compiled programs, unless JAX_COMPILATION_CACHE_DIR says where."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = user_cache() / "compiled" / _machine()
        folder.mkdir(parents=True, exist_ok=True)
        _prune(folder)
    except (OSError, RuntimeError):
        return
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_SECONDS)
        # JAX compiles again what it cannot read, such as half an entry of a process that was killed
        warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache entry")


def _prune(folder: Path) -> None:
    """Delete the least recently used programs beyond 1 GiB."""
    with contextlib.suppress(FileNotFoundError):  # another process deleted one first
        kept, files = 0, [path for path in folder.iterdir() if path.is_file()]
        for path in sorted(files, key=lambda path: -path.stat().st_atime):
            kept += path.stat().st_size
            if kept > _MAX_BYTES:
                path.unlink(missing_ok=True)


def _machine() -> str:
    """Return a name for this kind of processor: machine code may crash on another kind."""
    flags = None
    with contextlib.suppress(OSError):  # not Linux: JAX's own cache key has to suffice
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        flags = re.search(r"^(flags|Features).*", text, re.MULTILINE)
    return hashlib.sha256((flags[0] if flags else "").encode()).hexdigest()[:12]
