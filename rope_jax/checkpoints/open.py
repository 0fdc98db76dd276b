"""Which checkpoint a command's argument names: a folder, an id on the hub, an adapter, a GGUF."""

import glob
import os
import re
from pathlib import Path

from rope_jax.checkpoints import adapter
from rope_jax.checkpoints.adapter import read_adapter
from rope_jax.checkpoints.files import (
    ACCOMPANYING,
    CONFIG,
    GGUF,
    INDEX,
    SENTENCEPIECE,
    TOKENIZER,
    CheckpointFiles,
)
from rope_jax.errors import UserError, errors_in, file_errors
from rope_jax.extras import needs_extra

# What a download needs: no code, no pickles, no second copy in another format.
_PATTERNS = (
    *(*ACCOMPANYING, TOKENIZER, SENTENCEPIECE, INDEX, "model*.safetensors"),
    *(adapter.CONFIG, adapter.WEIGHTS),
)
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def open_checkpoint(model: str, revision: str | None, base: str | None = None) -> CheckpointFiles:
    """Open a checkpoint: a local folder, an id on the hub, an adapter and its base; a GGUF file.

    base: of an adapter, in place of the one that it names.
    """
    if is_gguf(model):
        if revision is not None:
            raise UserError(f"revision: {model} is a local file, which has no revisions")
        with needs_extra("gguf", f"{model}: GGUF"):
            from rope_jax.checkpoints.gguf.files import GgufFiles

        return GgufFiles(Path(model).expanduser())
    folder = find_folder(model, revision)
    changes = read_adapter(folder, base)
    if changes is None:
        if base is not None:
            raise UserError(f"base: {model} is no adapter, and has no base")
        return CheckpointFiles(folder)
    is_folder = os.path.isdir(os.path.expanduser(changes.base))
    try:
        base_folder = find_folder(changes.base, None if is_folder else changes.revision)
    except UserError as error:
        raise UserError(
            f"base: {error}; if the base is elsewhere: rope-jax import {model} base=FOLDER"
        ) from None
    return CheckpointFiles(base_folder, changes)


def find_folder(model: str, revision: str | None) -> Path:
    """Return the folder of a checkpoint: a local one, or that of a download from the hub."""
    folder = os.path.expanduser(model)
    if os.path.isdir(folder):
        if revision is not None:
            raise UserError(f"revision: {model} is a local folder, which has no revisions")
        if not os.path.isfile(os.path.join(folder, CONFIG)) and (found := _gguf_in(folder)):
            raise UserError(f"{model}: is a folder; name the file in it, such as {found[0]}")
        return Path(folder)
    if os.path.exists(folder) or not HUB_ID.fullmatch(model):
        raise UserError(
            f"{model}: is neither a folder with a {CONFIG} nor the id (owner/name) of a model on "
            "the Hugging Face hub"
        )
    from huggingface_hub import snapshot_download  # a fifth of a second, for every sweep

    # the network, the hub, a licence that is not accepted
    with errors_in(f"{model}: cannot be downloaded from the hub: ", UserError, Exception):
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(_PATTERNS)))


def is_gguf(model: str) -> bool:
    """Whether a command's argument names a GGUF file, by its name or its first bytes."""
    path = os.path.expanduser(model)
    if not os.path.isfile(path):
        return model.lower().endswith(GGUF) and not os.path.isdir(path)
    with file_errors(path), open(path, "rb") as file:
        return model.lower().endswith(GGUF) or file.read(4) == b"GGUF"


def is_checkpoint(model: str) -> bool:
    """Whether a command's argument names a checkpoint, of Hugging Face or GGUF, not a run."""
    if is_gguf(model):
        return True
    folder = os.path.expanduser(model)  # os.path also answers for names that no file can have
    if os.path.exists(os.path.join(folder, "config.yaml")):
        return False
    if any(os.path.isfile(os.path.join(folder, name)) for name in (CONFIG, adapter.CONFIG)):
        return True
    if _gguf_in(folder):
        return True
    # runs/dmeo is a misspelt run, not a model of the owner "runs"
    is_there = os.path.exists(folder) or os.path.exists(os.path.dirname(folder) or ".")
    return bool(HUB_ID.fullmatch(model)) and not is_there


def _gguf_in(folder: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), f"*{GGUF}")))
