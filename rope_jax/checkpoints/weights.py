"""The decoder's parameters from and to safetensors files, in a family's names.

Tensors are read one at a time, and the parameters filled where they belong, on the devices and in
their own type, so that the host never holds more than one tensor besides the file that it is in.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Int
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rope_jax import stopping
from rope_jax.checkpoints.files import INDEX, SINGLE, CheckpointFiles
from rope_jax.checkpoints.opening import opened, same_bits
from rope_jax.checkpoints.table import Row, Table
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params

MOST_OF_SHARD = 2**31
"""Bytes of the largest file; a larger tensor gets a file of its own."""


def load_parameters(files: CheckpointFiles, rows: Sequence[Row], like: Params) -> Params:
    """Return the parameters in a checkpoint.

    rows: the family's. like: shapes, dtypes and shardings of the parameters.

    UserError, before anything is read: a tensor that no parameter takes, one that is missing, or
    one of another shape than the config says.
    """
    table = Table(rows, like)
    _check_tensors(files, table)
    leaves = flatten_dict(like, sep="/")
    filled: dict[str, Array] = {}
    found = {name: place for name in files.tensors if (place := table.find(name))}
    for name, tensor in files.read(found):
        stopping.check()
        row, layer = found[name]
        for path, part in zip(row.paths, row.split(tensor, table.outputs(row, layer)), strict=True):
            _fill(filled, path, layer, part, leaves[path])
    _check_tied(files, [head for head in _TIED if head not in found], filled)
    parameters: Params = unflatten_dict({path: filled[path] for path in leaves}, sep="/")
    return parameters


def _check_tensors(files: CheckpointFiles, table: Table) -> None:
    """UserError unless the files hold exactly the tensors that the model needs."""
    unread = []
    for name, info in files.tensors.items():
        if (place := table.find(name)) is None:
            if name not in _TIED:
                unread.append(name)
        elif info.shape != (expected := table.tensor_shape(*place)):
            raise UserError(
                f"{info.file}: {name} has shape {list(info.shape)}, but {files.folder}/config.json "
                f"makes it {list(expected)}"
            )

    def first(names: list[str]) -> str:
        return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")

    if missing := [name for name, _, _ in table.names() if name not in files.tensors]:
        raise UserError(
            f"{files.folder}: {first(missing)} is missing, and config.json says that the model "
            "has it"
        )
    if unread:
        raise UserError(
            f"{files.tensors[unread[0]].file}: nothing reads {first(unread)}; config.json "
            "describes a model without it"
        )


# The output matrix of a model whose embedding is also its output: left out, or written twice.
_TIED = {
    "lm_head.weight": "model.embed_tokens.weight",
    "embed_out.weight": "gpt_neox.embed_in.weight",
}


def _check_tied(files: CheckpointFiles, heads: list[str], filled: dict[str, Array]) -> None:
    """UserError if a tied model's file holds another output matrix than its embedding."""
    for head, tensor in files.read(heads):
        embedding = np.asarray(filled["embed_tokens/embedding"])
        if not same_bits(tensor.astype(embedding.dtype), embedding):
            raise UserError(
                f"{files.tensors[head].file}: {head} differs from {_TIED[head]}, but config.json "
                "says tie_word_embeddings; set it to false"
            )


def _fill(
    filled: dict[str, Array], path: str, layer: int | None, part: NDArray[Any], like: Any
) -> None:
    """Put one parameter where it belongs: into its layer of a stacked array, or alone."""
    part = part.astype(like.dtype)
    if layer is None:
        filled[path] = jax.device_put(part, like.sharding)
        return
    if path not in filled:
        filled[path] = jnp.zeros(like.shape, like.dtype, device=like.sharding)
    filled[path] = _put_into(like.sharding)(filled[path], part, jnp.int32(layer))


@functools.cache
def _put_into(sharding: Any) -> Any:
    """Return a jitted function that replaces one layer of a stacked array in place."""

    def put(stacked: Array, part: Array, layer: Int[Array, ""]) -> Array:
        return jax.lax.dynamic_update_index_in_dim(stacked, part, layer, 0)

    return jax.jit(put, donate_argnums=0, out_shardings=sharding)


def write_weights(
    folder: Path, rows: Sequence[Row], params: Params, most: int = MOST_OF_SHARD
) -> None:
    """Write the parameters to one file, or to several with an index, and read them back."""
    table = Table(rows, params)
    leaves = flatten_dict(params, sep="/")
    shards = _shards(table, leaves, most)
    total = len(shards)
    names = [f"model-{i + 1:05}-of-{total:05}.safetensors" for i in range(total)]
    names = names if total > 1 else [SINGLE]
    weight_map: dict[str, str] = {}
    size = 0
    for file, shard in zip(names, shards, strict=True):
        stopping.check()
        tensors = {}
        for name, row, layer in shard:
            parts = (leaves[path] if layer is None else leaves[path][layer] for path in row.paths)
            tensors[name] = row.join([jax.device_get(part) for part in parts])
        # older readers refuse a file that does not say from which library its layout is
        save_file(tensors, folder / file, metadata={"format": "pt"})
        # the library makes it private; like the folder, it follows the umask instead
        (folder / file).chmod(folder.stat().st_mode & 0o666)
        with opened(folder / file) as written:
            for name, tensor in tensors.items():
                if not same_bits(written.get_tensor(name), tensor):
                    raise UserError(f"{folder / file}: {name} was not written correctly; try again")
        weight_map |= dict.fromkeys(tensors, file)
        size += sum(tensor.nbytes for tensor in tensors.values())
    if total > 1:
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(
    table: Table, leaves: dict[str, Any], most: int
) -> list[list[tuple[str, Row, int | None]]]:
    """Distribute the tensors over files, in order."""
    shards: list[list[tuple[str, Row, int | None]]] = [[]]
    size = 0
    for name, row, layer in table.names():
        shape = table.tensor_shape(row, layer)
        own = int(np.prod(shape)) * leaves[row.paths[0]].dtype.itemsize
        if shards[-1] and size + own > most:
            shards.append([])
            size = 0
        shards[-1].append((name, row, layer))
        size += own
    return shards
