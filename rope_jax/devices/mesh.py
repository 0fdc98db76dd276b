"""The mesh of devices: where each array lives, and how a program runs on all of them.

With several devices, the model's code runs on each inside a `shard_map` over the whole mesh, on its
own rows of the batch and its own shards of the parameters: attention kernels get plain arrays.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath
from jax.typing import DTypeLike

from rope_jax.attention.delta import DeltaState
from rope_jax.attention.linear import Running
from rope_jax.blocks.cache import Cache, KeyValueCache
from rope_jax.collectives import (
    AXES,
    CONTEXT,
    DATA,
    FSDP,
    ROWS,
    TENSOR,
    Collectives,
    Shardings,
    spec_of,
)
from rope_jax.config.devices import MeshConfig
from rope_jax.config.sections import StageConfig
from rope_jax.errors import UserError, errors_in
from rope_jax.model.decoder import Params
from rope_jax.rope import Rotary

Tree = TypeVar("Tree")
_REPLICATED, _ROWS = PartitionSpec(), PartitionSpec(ROWS)
_AUTO = (AxisType.Auto,) * len(AXES)


class Placement:
    """A mesh, how each kind of array is split over it, and functions that run on all its devices.

    row_shards, parameter_shards: parts of a batch's rows, and of each copy of the parameters.
    """

    def __init__(self, config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> None:
        """Build the mesh over devices, by default all. UserError unless it uses each once."""
        devices = jax.devices() if devices is None else devices
        shared = config.fsdp * config.context * config.tensor
        data = config.data or max(1, len(devices) // shared)
        sizes = {DATA: data, CONTEXT: config.context, FSDP: config.fsdp, TENSOR: config.tensor}
        if math.prod(sizes.values()) != len(devices):
            product = " × ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
            there_are = "there is 1" if len(devices) == 1 else f"there are {len(devices)}"
            raise UserError(
                f"mesh: {product or 'data 1'} takes {math.prod(sizes.values())} devices, and "
                f"{there_are}; make the product of its axes equal to that"
            )
        self._set(jax.make_mesh(tuple(sizes.values()), AXES, axis_types=_AUTO, devices=devices))
        self.shardings: Shardings = {}

    def _set(self, mesh: Mesh) -> None:
        self.mesh, self.config = mesh, MeshConfig(**mesh.shape)
        shared = self.config.fsdp, self.config.context, self.config.tensor
        self.collectives = Collectives(*shared, mesh.shape[DATA])
        self.row_shards = mesh.shape[DATA] * self.config.fsdp
        self.parameter_shards = self.config.fsdp * self.config.tensor
        self.replicated, self._rows = NamedSharding(mesh, _REPLICATED), NamedSharding(mesh, _ROWS)

    def splitting(self, shardings: Shardings) -> "Placement":
        """Return a placement that splits the parameters of a model as it asks for."""
        other = copy.copy(self)
        other.shardings = shardings
        return other

    def sharing_windows(self, context: int) -> "Placement":
        """Return a placement in which `context` devices share each window, for the same parameters.

        `context` must divide their copies, data × context.
        """
        copies, config = self.mesh.shape[DATA] * self.config.context, self.config
        shape = copies // context, context, config.fsdp, config.tensor
        other = copy.copy(self)
        other._set(Mesh(self.mesh.devices.reshape(shape), AXES, axis_types=_AUTO))
        return other

    @property
    def device(self) -> jax.Device:
        """One of this process's devices, or of those that the mesh is planned for."""
        return self.mesh.local_devices[0]

    @property
    def platform(self) -> str:
        return str(self.device.platform)

    def check_vocabulary(self, vocab_size: int) -> None:
        """UserError if the vocabulary cannot be split as the mesh says."""
        with errors_in("", UserError):
            self.config.check_split("tensor", "vocab_size", vocab_size)

    def check_stages(self, stages: tuple[StageConfig, ...]) -> None:
        """UserError if a stage's windows cannot be split evenly over the devices."""
        shared = self.mesh.size > self.row_shards
        whom = "groups of devices that share windows or heads" if shared else "devices"
        for number, stage in enumerate(stages):
            windows = stage.batch_size // stage.grad_accumulation
            if missing := -windows % self.row_shards:
                more = windows + missing
                raise UserError(
                    f"stages[{number}].batch_size: {windows} windows at a time cannot be split "
                    f"over {self.row_shards} {whom}; {more * stage.grad_accumulation} can"
                )

    @property
    def chunks(self) -> int:
        """The equal chunks that each window is cut into: its length must be a multiple."""
        return 1 if self.config.context == 1 else 2 * self.config.context

    def shard_state(self, abstract: Tree) -> Tree:
        """Add shardings to a tree of shapes and dtypes: parameters, optimizer state."""

        def shard(path: KeyPath, leaf: jax.Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            sharding = NamedSharding(self.mesh, spec_of(path, leaf, self.shardings))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree_util.tree_map_with_path(shard, abstract)

    def abstract_rows(self, shape: tuple[int, ...], dtype: DTypeLike) -> jax.ShapeDtypeStruct:
        """Return the shape, dtype and sharding of an array of `batch`; its rows are axis 0."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._rows)

    def batch(self, build: Callable[[slice], Tree], rows: int) -> Tree:
        """Return a batch split over the devices; each process builds its own rows: build(slice)."""
        places = self._rows.addressable_devices_indices_map((rows,)).values()
        owned = [range(rows)[index[0]] for index in places if index]
        first, last = min(part.start for part in owned), max(part.stop for part in owned)

        def spread(leaf: np.ndarray) -> jax.Array:
            def of_device(index: Any) -> np.ndarray:
                part = range(rows)[index[0]]
                return leaf[part.start - first : part.stop - first]

            # `make_array_from_process_local_data` takes three times as long
            return jax.make_array_from_callback((rows, *leaf.shape[1:]), self._rows, of_device)

        return jax.tree.map(spread, build(slice(first, last)))

    def gradient(
        self, loss: Callable[..., tuple[jax.Array, Tree]]
    ) -> Callable[..., tuple[Params, Tree]]:
        """Return the gradient of loss(params, rows, rotary, …), and its auxiliary output.

        loss returns a sum over its rows, and a tree of more such sums.
        """
        if self.mesh.size == 1:
            return jax.grad(loss, has_aux=True)
        # every device of a group that shares rows computes the same loss
        copies = self.config.context * self.config.tensor

        def on_each(params: Params, *arguments: object) -> tuple[Params, Tree]:
            def share(params: Params) -> tuple[jax.Array, Tree]:
                value, sums = loss(params, *arguments)
                return value / copies, sums

            gradient, sums = jax.grad(share, has_aux=True)(params)
            return self._summed(gradient), jax.lax.psum(sums, ROWS)

        def on_all(params: Params, *rest: object) -> tuple[Params, Tree]:
            return self._on_all(on_each, (self._specs_of(params), _REPLICATED), params, *rest)

        return on_all

    def sums(self, function: Callable[..., Tree]) -> Callable[..., Tree]:
        """Return function(params, rows, rotary, …), whose result is a tree of sums over rows."""
        if self.mesh.size == 1:
            return function
        return functools.partial(
            self._on_all, lambda *rows: jax.lax.psum(function(*rows), ROWS), _REPLICATED
        )

    def split_rows(self, function: Callable[..., Tree]) -> Callable[..., Tree]:
        """Wrap function(params, rows [B, …], rotary, …), whose results have the same rows.

        The rows are split over the devices, after copies of the last one if there are too few, and
        the result is replicated. Differentiable with respect to `rotary`.
        """
        if self.mesh.size == 1:
            return function

        @functools.wraps(function)
        def split(params: Params, rows: jax.Array, rotary: Rotary, *rest: object) -> Tree:
            def on_each(params: Params, rows: jax.Array, rotary: Rotary) -> Tree:
                return function(params, rows, rotary, *rest)  # what is static stays outside

            # Left alone, XLA would split these along this mesh, and JAX would look for the axes in
            # the mesh of the parameters, which may be another: see `sharing_windows`.
            rows, rotary = jax.lax.with_sharding_constraint((rows, rotary), self.replicated)
            count = rows.shape[0]
            if missing := -count % self.row_shards:
                index = np.minimum(np.arange(count + missing), count - 1)
                # replicated first: XLA would warn that it cannot split rows and repeat them at once
                rows = jax.lax.with_sharding_constraint(rows[index], self.replicated)
                rotary = jax.tree.map(lambda x: x if x.shape[1] == 1 else x[:, index], rotary)
            result = self._on_all(on_each, _ROWS, params, rows, rotary)
            result = jax.tree.map(lambda x: x[:count], result)
            return jax.lax.with_sharding_constraint(result, self.replicated)

        return split

    def continued(self, function: Callable[..., tuple[jax.Array, list[Cache]]]) -> Any:
        """Wrap function(params, rows, rotary, caches, first), which returns logits and caches.

        The rows are split over the devices, the logits replicated, the caches where they were.
        """
        if self.mesh.size == 1:
            return function

        def on_all(
            params: Params, rows: object, rotary: Rotary, caches: list[Cache], first: jax.Array
        ) -> tuple[jax.Array, list[Cache]]:
            split = [_cache_specs(cache) for cache in caches]
            given = params, rows, rotary, caches, first
            logits, caches = self._on_all(function, (_ROWS, split), *given, caches=split)
            return jax.lax.with_sharding_constraint(logits, self.replicated), caches

        return on_all

    def shard_caches(self, caches: list[Cache]) -> object:
        """Return where each array of the caches lies, from their shapes."""
        specs = [_cache_specs(cache) for cache in caches]
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)

    def _on_all(
        self, function: Callable[..., Tree], out_specs: object, *given: Any, caches: object = None
    ) -> Tree:
        """Run function(params, rows, rotary, …) on every device, with its shards of each.

        caches: how the argument after these is split, if it is not replicated like the others.
        """
        params, rows, rotary, *rest = given
        by_rows = jax.tree.map(lambda _: _ROWS, rows)
        second = PartitionSpec(None, ROWS)  # the axis of rows, unless all share what is there
        by_leaf = jax.tree.map(lambda x: _REPLICATED if x.shape[1] == 1 else second, rotary)
        others: list[object] = [_REPLICATED] * len(rest)
        if caches is not None:
            others[0] = caches
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(self._specs_of(params), by_rows, by_leaf, *others),
            out_specs=out_specs,
            check_vma=False,
        )(*given)

    def _specs_of(self, params: Tree) -> Tree:
        specs: Tree = jax.tree_util.tree_map_with_path(
            functools.partial(spec_of, shardings=self.shardings), params
        )
        return specs

    def _summed(self, gradient: Tree) -> Tree:
        """Add up the shares of a gradient over devices that have the same part of a parameter."""

        def summed(leaf: jax.Array, spec: PartitionSpec) -> jax.Array:
            split_over = {axis for axes in spec if axes for axis in np.atleast_1d(axes).tolist()}
            return jax.lax.psum(leaf, tuple(axis for axis in AXES if axis not in split_over))

        return jax.tree.map(summed, gradient, self._specs_of(gradient))


def _cache_specs(cache: Cache) -> Any:
    """Split rows, and heads over "tensor"; all heads share latents, the only single head there."""
    if isinstance(cache, KeyValueCache):
        return PartitionSpec(ROWS, None, TENSOR if cache.keys[0].shape[2] > 1 else None)
    by_head: Any = PartitionSpec(ROWS, TENSOR)
    if isinstance(cache, DeltaState):
        return DeltaState(by_head, PartitionSpec(ROWS, None, TENSOR), _ROWS)  # type: ignore[arg-type]
    return Running(by_head, by_head, _ROWS)  # type: ignore[arg-type]
