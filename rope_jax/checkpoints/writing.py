"""Write the decoder's parameters as safetensors files, in a family's names."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rope_jax import stopping
from rope_jax.checkpoints.files import INDEX, SINGLE
from rope_jax.checkpoints.opening import opened, same_bits
from rope_jax.checkpoints.table import Place, Row, Table, flattened
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params

MOST_OF_SHARD = 2**31
"""Bytes of the largest file; a larger tensor gets a file of its own."""


def write_weights(
    folder: Path, rows: Sequence[Row], params: Params, most: int = MOST_OF_SHARD
) -> None:
    """Write the parameters to one file, or to several with an index, and read them back.

    Raises UserError if what is read back differs, OSError if the folder cannot be written.
    """
    table = Table(rows, params)
    leaves = flattened(params)
    shards = _shards(table, leaves, most)
    names = [SINGLE]
    if len(shards) > 1:
        total = len(shards)
        names = [f"model-{i + 1:05}-of-{total:05}.safetensors" for i in range(total)]
    weight_map: dict[str, str] = {}
    size = 0
    for file, shard in zip(names, shards, strict=True):
        stopping.check()
        tensors = dict(_tensors(shard, leaves))
        # older readers refuse a file that does not say from which library its layout is
        save_file(tensors, folder / file, metadata={"format": "pt"})
        # the library makes it private; like the folder, it follows the umask instead
        (folder / file).chmod(folder.stat().st_mode & 0o666)
        _check_written(folder / file, tensors)
        weight_map |= dict.fromkeys(tensors, file)
        size += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


_Tensor = tuple[str, Row, int | None]


def _shards(table: Table, leaves: dict[str, Any], most: int) -> list[list[_Tensor]]:
    """Distribute the tensors over files, in order."""
    shards: list[list[_Tensor]] = [[]]
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


def _tensors(
    shard: Sequence[_Tensor], leaves: dict[str, Any]
) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, row, layer in shard:
        places = [Place(path, layer) for path in row.paths]
        parts = [
            jax.device_get(leaves[place.path] if layer is None else leaves[place.path][layer])
            for place in places
        ]
        yield name, row.join(parts)


def _check_written(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    with opened(path) as file:
        for name, tensor in tensors.items():
            if not same_bits(file.get_tensor(name), tensor):
                raise UserError(f"{path}: {name} was not written correctly; try again")
