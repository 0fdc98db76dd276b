"""What an unfinished sweep's measurements depend on: only with the same may it be resumed."""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
from pathlib import Path

import jax

from rope_jax import __version__
from rope_jax.config.training import Config
from rope_jax.data.storage import Corpus
from rope_jax.devices.hardware import device_line
from rope_jax.runs.directory import RunDirectory

_PACKAGE = Path(__file__).parents[1]
# What computes an NLL, or decides from which checkpoint and which texts. The rest of the package
# prints, draws and trains.
_THAT_COMPUTES = (
    *("rope", "config", "attention", "data", "devices", "model", "evaluation"),
    *("training/checkpoints.py", "sweeps/checkpoints.py", "sweeps/run.py"),
)
_LIBRARIES = ("jax", "jaxlib", "flax", "numpy")


def journal_identity(
    run: RunDirectory, training: Config, corpus: Corpus, split: str, step: int
) -> str:
    """Return one line that differs for measurements that may differ."""
    written = 0  # the checkpoint may be gone: a run in progress deletes old ones
    with contextlib.suppress(FileNotFoundError):
        written = (run.checkpoints / str(step)).stat().st_mtime_ns
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    parts = (
        *(step, written, corpus.fingerprint, split, __version__, code_hash(_PACKAGE)),
        *(importlib.metadata.version(name) for name in _LIBRARIES),
        *(precision, os.environ.get("XLA_FLAGS", "")),
        *(device_line(training.model.dtype), training.model_dump_json()),
    )
    return " ".join(map(str, parts))


@functools.cache
def code_hash(package: Path) -> str:
    """Return a hash of the source files that compute NLLs."""
    found = hashlib.sha256()
    for place in _THAT_COMPUTES:
        path = package / place
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            content = file.read_bytes()
            found.update(f"{file.relative_to(package)} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16]
