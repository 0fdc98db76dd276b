"""Which device holds which array. Only this module names mesh axes.

The batch is split over all devices. Parameters and optimizer state are split over "fsdp" only,
with a full copy for each index along "data"; XLA gathers a layer's parameters where it needs them.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rope_jax.config.devices import MeshConfig
from rope_jax.config.training import StageConfig
from rope_jax.errors import UserError

_DATA, _FSDP = "data", "fsdp"
Tree = TypeVar("Tree")


class Placement:
    """A mesh, and how each kind of array is sharded over it."""

    def __init__(self, config: MeshConfig) -> None:
        """Build the mesh. UserError unless it uses every device exactly once."""
        devices = jax.devices()
        data = config.data or max(1, len(devices) // config.fsdp)
        if data * config.fsdp != len(devices):
            raise UserError(
                f"mesh: data {data} × fsdp {config.fsdp} is {data * config.fsdp} devices, and "
                f"there are {len(devices)}; make the product equal to that"
            )
        axes = (AxisType.Auto, AxisType.Auto)
        self.mesh = jax.make_mesh((data, config.fsdp), (_DATA, _FSDP), axis_types=axes)
        self.fsdp = config.fsdp
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        self._rows = NamedSharding(self.mesh, PartitionSpec((_DATA, _FSDP)))

    def check_stages(self, stages: tuple[StageConfig, ...]) -> None:
        """UserError if a stage's windows cannot be split evenly over the devices."""
        for number, stage in enumerate(stages):
            windows = stage.batch_size // stage.grad_accumulation
            if windows % self.mesh.size:
                raise UserError(
                    f"stages[{number}].batch_size: {windows} windows at a time cannot be split "
                    f"over {self.mesh.size} devices; make it a multiple"
                )

    def shard_state(self, abstract: Tree) -> Tree:
        """Add shardings to a tree of shapes and dtypes: parameters, optimizer state."""

        def shard(leaf: Any) -> jax.ShapeDtypeStruct:
            sharding = NamedSharding(self.mesh, self._longest_axis(leaf.shape))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree.map(shard, abstract)

    def abstract_rows(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        """Return the shape, dtype and sharding of an array of `batch`; its rows are axis 0."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._rows)

    def batch(self, build: Callable[[slice], Tree], rows: int) -> Tree:
        """Return a batch of `rows` rows, split over all devices.

        Each process builds only its own rows, with `build(slice)`.
        """
        each = rows // jax.process_count()
        first = each * jax.process_index()
        local = build(slice(first, first + each))
        return jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(
                self._rows, leaf, (rows, *leaf.shape[1:])
            ),
            local,
        )

    def split_rows(self, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        """Wrap function(state, rows [B, …], …) so that the rows are split over all devices.

        The result is replicated on every device. B must be a multiple of the device count.
        """

        def split(state: Any, rows: jax.Array, *rest: Any) -> jax.Array:
            rows = jax.lax.with_sharding_constraint(rows, self._rows)
            result = function(state, rows, *rest)
            return jax.lax.with_sharding_constraint(result, self.replicated)

        return split

    def _longest_axis(self, shape: tuple[int, ...]) -> PartitionSpec:
        """Split the longest axis that "fsdp" divides; if there is none, replicate the array."""
        divisible = [axis for axis, size in enumerate(shape) if size % self.fsdp == 0]
        if self.fsdp == 1 or not divisible:
            return PartitionSpec()
        longest = max(divisible, key=lambda axis: shape[axis])
        return PartitionSpec(*(_FSDP if axis == longest else None for axis in range(len(shape))))
