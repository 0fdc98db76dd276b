"""What an unfinished sweep's measurements depend on: only with the same may it be resumed."""

import contextlib
import importlib.metadata
import os

import jax

from rope_jax import __version__
from rope_jax.config.training import Config
from rope_jax.data.storage import Corpus
from rope_jax.devices.hardware import device_line
from rope_jax.kernels.loading import load_kernels
from rope_jax.model.resolve import numbers_in_words
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.code import code_hash

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
        *(step, written, corpus.fingerprint, split, __version__, code_hash()),
        *(importlib.metadata.version(name) for name in _LIBRARIES),
        *(precision, os.environ.get("XLA_FLAGS", "")),
        *(device_line(numbers_in_words(training.model)), training.model_dump_json()),
        load_kernels(),
    )
    return " ".join(map(str, parts))
