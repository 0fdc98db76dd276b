"""JSON and safetensors files: read with errors of one line, never running any code; written."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  safetensors finds numpy's bfloat16 only once this is imported
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rope_jax.errors import UserError, file_errors

# What torch.compile, data parallelism and multimodal models put before the names of the weights of
# a language model, and what is in its place.
_PREFIXES = {
    "_orig_mod.": "",
    "module.": "",
    "model.language_model.": "model.",
    "language_model.": "",
}


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file. UserError if it turns out to be truncated or damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        why = " ".join(str(error).split())
        what = "is truncated or damaged" if path.exists() else "is missing"
        raise UserError(f"{path}: {what} ({why}); download the checkpoint again") from None


def save_tensors(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Write a safetensors file, in a folder whose permissions it takes."""
    # older readers refuse a file that does not say from which library its layout is
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(path.parent.stat().st_mode & 0o666)  # the library makes it private


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. UserError if it cannot be read or is none."""
    try:
        with file_errors(path):
            content = json.loads(path.read_bytes())
    except ValueError:
        raise UserError(f"{path}: is not JSON") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: is not a JSON object")
    return content


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays are equal bit for bit, NaNs and signs of zero included."""
    same_form = a.dtype == b.dtype and a.shape == b.shape
    return same_form and np.array_equal(np.ravel(a).view(np.uint8), np.ravel(b).view(np.uint8))


def without_prefix(name: str) -> str:
    """Return the name of a weight without the prefixes that are not part of a language model."""
    for prefix, instead in _PREFIXES.items():
        if name.startswith(prefix):
            return without_prefix(instead + name.removeprefix(prefix))
    return name
