"""The decoder's parameters from and to safetensors files, in a family's names.

A family's table is a list of rows, used in both directions. A tensor holds one or several of our
parameters of one layer, or of one of its experts. A kernel's last axis is that of its outputs, but
weights of transformers have the outputs before the inputs.

Tensors are read one at a time, and the parameters filled where they belong, on the devices and in
their own type, so that the host never holds more than one tensor besides the file that it is in.
"""

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
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
    paths:  the parameters, in the order in which the tensor holds their outputs. Those of the first
            layers may be in a stack of their own, `dense_layers` instead of `layers`.
    groups: the outputs are ordered by group first, then by parameter. GPT-NeoX: one group per head.
    inputs_first: kernels are stored as here, their inputs before their outputs (gpt-oss's experts).
    """

    name: str
    paths: tuple[str, ...]
    groups: int = 1
    inputs_first: bool = False

    def transposes(self, path: str) -> bool:
        """Whether the tensor holds the transpose of one of its parameters."""
        return path.endswith("/kernel") and not self.inputs_first


class Tensor(NamedTuple):
    """A row's tensor in one model.

    paths:  of its parameters.
    place:  where in these it is: its layer of the stack, and its expert or head; () outside.
    shapes: of its parameters, as the tensor has them: the outputs before the inputs of a kernel.
    """

    row: Row
    paths: tuple[str, ...]
    place: tuple[int, ...]
    shapes: list[tuple[int, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; what is before the axis of outputs is one for all experts."""
        axis, first = self._outputs, self.shapes[0]
        return (*first[:axis], sum(shape[axis] for shape in self.shapes), *first[axis + 1 :])

    def split(self, tensor: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the parameters in a tensor."""
        axis, groups = self._outputs, self.row.groups
        before, after = tensor.shape[:axis], tensor.shape[axis + 1 :]
        grouped = tensor.reshape(*before, groups, -1, *after)
        ends = np.cumsum([shape[axis] // groups for shape in self.shapes])[:-1]
        parts = np.split(grouped, ends, axis=axis + 1)
        return self._transposed([part.reshape(*before, -1, *after) for part in parts])

    def join(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the tensor that holds these parameters: the inverse of `split`."""
        axis, groups = self._outputs, self.row.groups
        before, after = self.shape[:axis], self.shape[axis + 1 :]
        grouped = [part.reshape(*before, groups, -1, *after) for part in self._transposed(parts)]
        # a view that is not contiguous would be written to safetensors wrongly, without an error
        return np.ascontiguousarray(np.concatenate(grouped, axis=axis + 1).reshape(self.shape))

    @property
    def _outputs(self) -> int:
        """The axis of outputs: the last but one of matrices, of whatever else the last."""
        matrix = self.paths[0].endswith(("/kernel", "/embedding")) and not self.row.inputs_first
        return len(self.shapes[0]) - (2 if matrix else 1)

    def _transposed(self, parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Turn weights [outputs, inputs] into kernels [inputs, outputs] or back."""
        return [
            part.swapaxes(-1, -2) if self.row.transposes(path) else part
            for path, part in zip(self.paths, parts, strict=True)
        ]


def tensors_of(rows: Sequence[Row], like: Params) -> dict[str, Tensor]:
    """Return a model's tensors by name, in the order in which they are written.

    rows: the family's; those of parameters that the model lacks are left out.
    like: the shapes of the parameters.
    """
    shapes = {path: leaf.shape for path, leaf in flatten_dict(like, sep="/").items()}
    made: dict[str, Tensor] = {}

    def add(stack: str = "layers", layer: int = 0, *place: int) -> None:
        """Add the tensors of a layer, given its place in a stack; without, those outside."""
        for row in rows:
            paths = tuple(path.replace("layers/", f"{stack}/", 1) for path in row.paths)
            axes = row.name.count("{}")
            if bool(place) != bool(axes) or not shapes.keys() >= set(paths):
                continue
            own = [(path, shapes[path][axes:]) for path in paths]
            outputs_first = [
                (*shape[:-2], shape[-1], shape[-2]) if row.transposes(path) else shape
                for path, shape in own
            ]
            for rest in itertools.product(*map(range, shapes[paths[0]][len(place) : axes])):
                numbers = (layer, *rest) if place else ()
                made[row.name.format(*numbers)] = Tensor(row, paths, (*place, *rest), outputs_first)

    add()
    layer = 0
    for stack in ("dense_layers", "layers"):
        counts = [shape[0] for path, shape in shapes.items() if path.startswith(f"{stack}/")]
        for place in range(max(counts, default=0)):
            add(stack, layer, place)
            layer += 1
    if unknown := sorted(shapes.keys() - {path for each in made.values() for path in each.paths}):
        raise ValueError(f"the parameter {unknown[0]} has no tensor in this family")
    return made


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
        for path, part in zip(tensor.paths, tensor.split(array), strict=True):
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
        get_storage_size=lambda t: math.prod(t.shape) * leaves[t.paths[0]].dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=most,
    )
    for file, names in plan.filename_to_tensors.items():
        stopping.check()
        arrays = {}
        for name in names:
            tensor = tensors[name]
            parts = [jax.device_get(leaves[path][tensor.place]) for path in tensor.paths]
            arrays[name] = tensor.join(parts)
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
