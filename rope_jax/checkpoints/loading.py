"""Stream a checkpoint's tensors into the decoder's parameters, one at a time.

The parameters are filled where they belong, on the devices and in their own type, so that the host
never holds more than one tensor besides the file that it is read from.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from numpy.typing import NDArray

from rope_jax import stopping
from rope_jax.checkpoints.files import CheckpointFiles
from rope_jax.checkpoints.opening import same_bits
from rope_jax.checkpoints.table import Place, Row, Table, flattened, nested
from rope_jax.errors import UserError
from rope_jax.model.decoder import Params


def load_parameters(files: CheckpointFiles, rows: Sequence[Row], like: Params) -> Params:
    """Return the parameters in a checkpoint.

    rows: the family's. like: shapes, dtypes and shardings of the parameters.

    UserError, before anything is read: a tensor that no parameter takes, one that is missing, or
    one of another shape than the config says.
    """
    table = Table(rows, like)
    _check_tensors(files, table)
    leaves = flattened(like)
    filled: dict[str, Array] = {}
    for shard in files.shards():
        for name in shard.names:
            found = table.find(name)
            if found is None:
                continue
            stopping.check()
            row, places = found
            parts = row.split(shard.read(name), table.outputs(row, places[0].layer))
            for place, part in zip(places, parts, strict=True):
                _fill(filled, place, part, leaves[place.path])
    _check_tied(files, table, filled)
    return nested({path: filled[path] for path in leaves})


def _check_tensors(files: CheckpointFiles, table: Table) -> None:
    """UserError unless the files hold exactly the tensors that the model needs."""
    unread = []
    for name, info in files.tensors.items():
        found = table.find(name)
        if found is None:
            if name not in _TIED:
                unread.append(name)
            continue
        row, places = found
        expected = table.tensor_shape(row, places[0].layer)
        if info.shape != expected:
            raise UserError(
                f"{info.file}: {name} has shape {list(info.shape)}, but {files.folder}/config.json "
                f"makes it {list(expected)}"
            )
    missing = [name for name, _, _ in table.names() if name not in files.tensors]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(
            f"{files.folder}: {missing[0]}{more} is missing, and config.json says that the model "
            "has it"
        )
    if unread:
        more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
        raise UserError(
            f"{files.tensors[unread[0]].file}: nothing reads {unread[0]}{more}; config.json "
            "describes a model without it"
        )


# The output matrix of a model whose embedding is also its output: left out, or written twice.
_TIED = {
    "lm_head.weight": "model.embed_tokens.weight",
    "embed_out.weight": "gpt_neox.embed_in.weight",
}


def _check_tied(files: CheckpointFiles, table: Table, filled: dict[str, Array]) -> None:
    """UserError if a tied model's file holds another output matrix than its embedding."""
    for head in _TIED:
        if head not in files.tensors or table.find(head) is not None:
            continue
        embedding = np.asarray(filled["embed_tokens/embedding"])
        for shard in files.shards():
            if head not in shard.names:
                continue
            own = shard.read(head).astype(embedding.dtype)
            if not same_bits(own, embedding):
                raise UserError(
                    f"{shard.path}: {head} differs from {_TIED[head]}, but config.json says "
                    "tie_word_embeddings; set it to false"
                )


def _fill(filled: dict[str, Array], place: Place, part: NDArray[Any], like: Any) -> None:
    """Put one parameter where it belongs: into its layer of a stacked array, or alone."""
    part = part.astype(like.dtype)
    if place.layer is None:
        filled[place.path] = jax.device_put(part, like.sharding)
        return
    if place.path not in filled:
        filled[place.path] = _zeros(like.shape, like.dtype, like.sharding)()
    put = _put_into(like.sharding)
    filled[place.path] = put(filled[place.path], part, jnp.int32(place.layer))


@functools.cache
def _zeros(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    """Return a jitted function that makes an array of zeros where it belongs."""
    return jax.jit(functools.partial(jnp.zeros, shape, dtype), out_shardings=sharding)


@functools.cache
def _put_into(sharding: Any) -> Any:
    """Return a jitted function that replaces one layer of a stacked array in place."""

    def put(stacked: Array, part: Array, layer: Int[Array, ""]) -> Array:
        return jax.lax.dynamic_update_index_in_dim(stacked, part, layer, 0)

    return jax.jit(put, donate_argnums=0, out_shardings=sharding)
