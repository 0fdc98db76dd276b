"""Which device holds what: the only place that names mesh axes.

The batch is split over all devices. Parameters and optimizer state are split over "fsdp" alone,
and lie whole on each of its "data" copies; XLA gathers a layer's parameters where it needs them.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rope_jax.config.devices import MeshConfig
from rope_jax.config.training import StageConfig
from rope_jax.devices.hardware import device_bytes
from rope_jax.errors import UserError

_DATA, _FSDP = "data", "fsdp"
Tree = TypeVar("Tree")


class Placement:
    """A mesh, and where each kind of array lies on it."""

    def __init__(self, config: MeshConfig) -> None:
        """UserError where the mesh does not take up the devices exactly."""
        devices = jax.devices()
        data = config.data or max(1, len(devices) // config.fsdp)
        if data * config.fsdp != len(devices):
            raise UserError(
                f"mesh: data {data} × fsdp {config.fsdp} is {data * config.fsdp} devices, and "
                f"there are {len(devices)}; their product must be that"
            )
        axes = (AxisType.Auto, AxisType.Auto)
        self.mesh = jax.make_mesh((data, config.fsdp), (_DATA, _FSDP), axis_types=axes)
        self.fsdp = config.fsdp
        self.everywhere = NamedSharding(self.mesh, PartitionSpec())
        self._rows = NamedSharding(self.mesh, PartitionSpec((_DATA, _FSDP)))

    def check(self, stages: tuple[StageConfig, ...]) -> None:
        """UserError if a stage's windows cannot be split over the devices evenly."""
        for number, stage in enumerate(stages):
            windows = stage.batch_size // stage.grad_accumulation
            if windows % self.mesh.size:
                raise UserError(
                    f"stages[{number}].batch_size: {windows} windows at a time cannot be split "
                    f"over {self.mesh.size} devices; make it a multiple"
                )

    def of_state(self, like: Tree) -> Tree:
        """`like` (shapes and dtypes) with each array's place: parameters, optimizer state."""

        def place(leaf: Any) -> jax.ShapeDtypeStruct:
            sharding = NamedSharding(self.mesh, self._longest_axis(leaf.shape))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree.map(place, like)

    def check_memory(self, state: Any) -> None:
        """UserError if a state, which `of_state` placed, is more than the devices can hold."""
        each = sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(state)
        )
        if jax.local_devices()[0].platform == "cpu":  # devices of one host share its memory
            each *= jax.local_device_count()
        there = device_bytes()
        if each > there:
            raise UserError(
                f"model: its parameters and optimizer state take {each / 2**30:,.1f} GiB, and "
                f"there are {there / 2**30:,.1f}; make it smaller, or split it with mesh.fsdp"
            )

    def batch(self, build: Callable[[slice], Tree], rows: int) -> Tree:
        """`rows` rows, split over all devices; each process builds its own with `build(rows)`."""
        each = rows // jax.process_count()
        first = each * jax.process_index()
        local = build(slice(first, first + each))
        return jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(
                self._rows, leaf, (rows, *leaf.shape[1:])
            ),
            local,
        )

    def over_rows(self, rows_of: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """rows_of(state, rows [B, …], …), computed by all devices together, whole on each.

        B is a multiple of the devices.
        """

        def split(state: Any, rows: jax.Array, *rest: Any) -> jax.Array:
            rows = jax.lax.with_sharding_constraint(rows, self._rows)
            found = rows_of(state, rows, *rest)
            return jax.lax.with_sharding_constraint(found, self.everywhere)

        return split

    def _longest_axis(self, shape: tuple[int, ...]) -> PartitionSpec:
        fitting = [axis for axis, size in enumerate(shape) if size % self.fsdp == 0]
        if self.fsdp == 1 or not fitting:
            return PartitionSpec()
        longest = max(fitting, key=lambda axis: shape[axis])
        return PartitionSpec(*(_FSDP if axis == longest else None for axis in range(len(shape))))
