"""The decoder's parameters from and to safetensors files, in a family's names.

Tensors are read one at a time, and the parameters filled where they belong, on the devices and in
their own type, so that the host never holds more than one tensor besides the file that it is in.
"""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from huggingface_hub import split_state_dict_into_shards_factory
from jaxtyping import Array, Int
from numpy.typing import NDArray

from rope_jax import stopping
from rope_jax.checkpoints.files import INDEX, CheckpointFiles
from rope_jax.checkpoints.opening import same_bits, save_tensors
from rope_jax.checkpoints.tensors import Row, Tensor, tensors_of
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params

MAX_SHARD_BYTES = 2**31  # bytes of the largest file; a larger tensor gets a file of its own


def shapes_of(params: Params) -> dict[str, tuple[int, ...]]:
    return {path: leaf.shape for path, leaf in flatten_dict(params, sep="/").items()}


def load_parameters(
    files: CheckpointFiles,
    rows: Sequence[Row],
    stacks: Mapping[str, Sequence[int]],
    abstract_params: Params,
) -> Params:
    """Return the parameters in a checkpoint.

    rows: the family's. stacks: the numbers of the layers of each.
    abstract_params: shapes, dtypes and shardings of the parameters.

    UserError, before anything is read: a tensor that no parameter takes, one that is missing, or
    one of another shape than the config says.
    """
    rows = files.named(rows)
    tensors = tensors_of(rows, shapes_of(abstract_params), stacks)
    names = {row.paths: row.name for row in rows}
    # of a model whose embedding is also its output matrix, this is left out or written twice
    head = names[("lm_head/kernel",)]
    _check_tensors(files, tensors, head)
    leaves = flatten_dict(abstract_params, sep="/")
    filled: dict[str, Array] = {}
    for name, array in files.read(tensors):
        stopping.check()
        tensor = tensors[name]
        for path, part in zip(tensor.paths, tensor.split(array), strict=True):
            leaf, part = leaves[path], part.astype(leaves[path].dtype)
            if not tensor.at:
                filled[path] = jax.device_put(part, leaf.sharding)
                continue
            if path not in filled:
                filled[path] = jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
            put = _put_into(leaf.sharding)
            filled[path] = put(filled[path], part, jnp.asarray(tensor.at, jnp.int32))
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
def _put_into(sharding: jax.sharding.Sharding) -> Callable[..., Array]:
    """Return a jitted function that replaces a part of a stacked array in place."""

    def put(stacked: Array, part: Array, index: Int[Array, " axes"]) -> Array:
        shape = stacked.shape[index.size :]
        update = part.reshape((1,) * index.size + shape)
        return jax.lax.dynamic_update_slice(stacked, update, (*index, *(0,) * len(shape)))

    return jax.jit(put, donate_argnums=0, out_shardings=sharding)


def joined(tensor: Tensor, leaves: Mapping[str, Array]) -> NDArray[Any]:
    """Return a tensor, given the parameters by path."""
    return tensor.join([jax.device_get(leaves[path][tensor.at]) for path in tensor.paths])


def write_weights(
    folder: Path,
    rows: Sequence[Row],
    stacks: Mapping[str, Sequence[int]],
    params: Params,
    max_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write the parameters to one file, or to several with an index; as `load_parameters`."""
    leaves = flatten_dict(params, sep="/")
    tensors = tensors_of(rows, shapes_of(params), stacks)
    plan = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda t: math.prod(t.shape) * leaves[t.paths[0]].dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_bytes,
    )
    for file, names in plan.filename_to_tensors.items():
        stopping.check()
        save_tensors(folder / file, {name: joined(tensors[name], leaves) for name in names})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
