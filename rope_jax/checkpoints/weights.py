"""The decoder's parameters from and to safetensors files, in a family's names.

A family's table is a list of rows, used in both directions. A tensor holds one or several of our
parameters of one layer. Their outputs are the tensor's first axis, while a kernel's is its last.

Tensors are read one at a time, and the parameters filled where they belong, on the devices and in
their own type, so that the host never holds more than one tensor besides the file that it is in.
"""

import functools
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from huggingface_hub import split_state_dict_into_shards_factory
from jaxtyping import Array, Int
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rope_jax import stopping
from rope_jax.checkpoints.files import INDEX, CheckpointFiles
from rope_jax.checkpoints.opening import opened, same_bits
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params

_MOST_OF_SHARD = 2**31  # bytes of the largest file; a larger tensor gets a file of its own


class Row(NamedTuple):
    """A tensor, and the parameters that it holds.

    name:   the tensor's name, with {} for the number of the layer, and for that of the expert or
            head if each has a tensor: then these are the parameter's first axes.
    paths:  the parameters, in the order in which the tensor holds their outputs.
    groups: the outputs are ordered by group first, then by parameter. GPT-NeoX: one group per head.
    """

    name: str
    paths: tuple[str, ...]
    groups: int = 1


class Tensor(NamedTuple):
    """A row's tensor in one model.

    place:  where in the stacked parameters it is: its layer, and its expert or head; () outside.
    shapes: of its parameters, as the tensor has them: outputs first.
    """

    row: Row
    place: tuple[int, ...]
    shapes: list[tuple[int, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])

    def split(self, tensor: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the parameters in a tensor."""
        rest = tensor.shape[1:]
        grouped = tensor.reshape(self.row.groups, -1, *rest)
        ends = np.cumsum([shape[0] // self.row.groups for shape in self.shapes])[:-1]
        parts = [part.reshape(-1, *rest) for part in np.split(grouped, ends, axis=1)]
        return self._transposed(parts)

    def join(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the tensor that holds these parameters: the inverse of `split`."""
        rest = self.shapes[0][1:]
        grouped = [part.reshape(self.row.groups, -1, *rest) for part in self._transposed(parts)]
        # a view that is not contiguous would be written to safetensors wrongly, without an error
        return np.ascontiguousarray(np.concatenate(grouped, axis=1).reshape(-1, *rest))

    def _transposed(self, parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Turn weights [outputs, inputs] into kernels [inputs, outputs] or back."""
        pairs = zip(self.row.paths, parts, strict=True)
        return [part.T if path.endswith("/kernel") else part for path, part in pairs]


def tensors_of(rows: Iterable[Row], like: Params) -> dict[str, Tensor]:
    """Return a model's tensors by name, in the order in which they are written.

    rows: the family's; those of parameters that the model lacks are left out.
    like: the shapes of the parameters.
    """
    shapes = {path: leaf.shape for path, leaf in flatten_dict(like, sep="/").items()}
    present = [row for row in rows if shapes.keys() >= set(row.paths)]
    if unknown := sorted(shapes.keys() - {path for row in present for path in row.paths}):
        raise ValueError(f"the parameter {unknown[0]} has no tensor in this family")
    stacked = [row for row in present if "{}" in row.name]
    layers = max((shapes[row.paths[0]][0] for row in stacked), default=0)

    def tensors(row: Row, *layer: int) -> dict[str, Tensor]:
        axes = row.name.count("{}")
        own = [(path, shapes[path][axes:]) for path in row.paths]
        outputs_first = [shape[::-1] if path.endswith("/kernel") else shape for path, shape in own]
        inner = map(range, shapes[row.paths[0]][len(layer) : axes])
        indices = [(*layer, *rest) for rest in itertools.product(*inner)]
        return {row.name.format(*index): Tensor(row, index, outputs_first) for index in indices}

    made = [tensors(row) for row in present if row not in stacked]
    made += [tensors(row, layer) for layer in range(layers) for row in stacked]
    return {name: tensor for part in made for name, tensor in part.items()}


def load_parameters(files: CheckpointFiles, rows: Sequence[Row], like: Params) -> Params:
    """Return the parameters in a checkpoint.

    rows: the family's. like: shapes, dtypes and shardings of the parameters.

    UserError, before anything is read: a tensor that no parameter takes, one that is missing, or
    one of another shape than the config says.
    """
    rows = files.named(rows)
    tensors, names = tensors_of(rows, like), {row.paths: row.name for row in rows}
    # of a model whose embedding is also its output matrix, this is left out or written twice
    head = names[("lm_head/kernel",)]
    _check_tensors(files, tensors, head)
    leaves = flatten_dict(like, sep="/")
    filled: dict[str, Array] = {}
    for name, array in files.read(tensors):
        stopping.check()
        tensor = tensors[name]
        for path, part in zip(tensor.row.paths, tensor.split(array), strict=True):
            leaf, part = leaves[path], part.astype(leaves[path].dtype)
            if not tensor.place:
                filled[path] = jax.device_put(part, leaf.sharding)
                continue
            if path not in filled:
                filled[path] = jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
            put = _put_into(leaf.sharding)
            filled[path] = put(filled[path], part, jnp.asarray(tensor.place, jnp.int32))
    for _, array in files.read({head} - tensors.keys()):
        embedding = np.asarray(filled["embed_tokens/embedding"])
        if not same_bits(array.astype(embedding.dtype), embedding):
            raise UserError(
                f"{files.tensors[head].file}: {head} differs from "
                f"{names[('embed_tokens/embedding',)]}, but config.json says tie_word_embeddings; "
                "set it to false"
            )
    parameters: Params = unflatten_dict({path: filled[path] for path in leaves}, sep="/")
    return parameters


def _check_tensors(files: CheckpointFiles, tensors: Mapping[str, Tensor], head: str) -> None:
    """UserError unless the files hold exactly the tensors that the model needs."""
    for name, tensor in tensors.items():
        info = files.tensors.get(name)
        if info is not None and info.shape != tensor.shape:
            raise UserError(
                f"{info.file}: {name} has shape {list(info.shape)}, but {files.config_file} makes "
                f"it {list(tensor.shape)}"
            )

    def first(names: list[str]) -> str:
        return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")

    if missing := [name for name in tensors if name not in files.tensors]:
        raise UserError(
            f"{files.folder}: {first(missing)} is missing, but {files.config_file.name} describes "
            "it"
        )
    if unread := [name for name in files.tensors if name not in {*tensors, head}]:
        raise UserError(
            f"{files.tensors[unread[0]].file}: nothing reads {first(unread)}; "
            f"{files.config_file.name} describes a model without it"
        )


@functools.cache
def _put_into(sharding: Any) -> Any:
    """Return a jitted function that replaces a part of a stacked array in place."""

    def put(stacked: Array, part: Array, index: Int[Array, " axes"]) -> Array:
        update = part.reshape((1,) * index.size + part.shape)
        return jax.lax.dynamic_update_slice(stacked, update, (*index, *(0,) * part.ndim))

    return jax.jit(put, donate_argnums=0, out_shardings=sharding)


def write_weights(
    folder: Path, rows: Sequence[Row], params: Params, most: int = _MOST_OF_SHARD
) -> None:
    """Write the parameters to one file, or to several with an index, and read them back."""
    leaves = flatten_dict(params, sep="/")
    tensors = tensors_of(rows, params)
    plan = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda t: math.prod(t.shape) * leaves[t.row.paths[0]].dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=most,
    )
    for file, names in plan.filename_to_tensors.items():
        stopping.check()
        arrays = {}
        for name in names:
            tensor = tensors[name]
            whole = (leaves[path] for path in tensor.row.paths)
            parts = (leaf[tensor.place] for leaf in whole) if tensor.place else whole
            arrays[name] = tensor.join([jax.device_get(part) for part in parts])
        # older readers refuse a file that does not say from which library its layout is
        save_file(arrays, folder / file, metadata={"format": "pt"})
        # the library makes it private; like the folder, it follows the umask instead
        (folder / file).chmod(folder.stat().st_mode & 0o666)
        with opened(folder / file) as written:
            for name, array in arrays.items():
                if not same_bits(written.get_tensor(name), array):
                    raise UserError(f"{folder / file}: {name} was not written correctly; try again")
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
