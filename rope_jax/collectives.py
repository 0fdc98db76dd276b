"""How parameters are split over the mesh, and what a device exchanges inside a `shard_map`.

The model's code is written for one device: its rows, tokens and heads. On an axis of size 1 the
methods return their argument, so that the program of a single device is the plain one.

Every device differentiates the sum of all devices' losses with respect to its own arrays. So JAX's
transposes of collectives are right: that of an all-gather is a reduce-scatter, that of a sum a sum.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.tree_util import DictKey, KeyPath
from jaxtyping import Array, Float

from rope_jax.positions.zigzag import ZigZag, restored

DATA, CONTEXT, FSDP, TENSOR = "data", "context", "fsdp", "tensor"
AXES = (DATA, CONTEXT, FSDP, TENSOR)
"""The axes of the mesh. Neighbouring devices differ in the last one, which exchanges the most. A
sweep turns data into context; these are neighbours too, so that each device keeps its shards."""
ROWS = (DATA, FSDP)
"""The axes over which the rows of a batch are split."""

Tree = TypeVar("Tree")


class Sharding(NamedTuple):
    """How a parameter is split, without its axis of layers.

    axes:       the mesh axis that splits each of its axes, if any.
    added_once: a bias that is added to a sum over "tensor", so only one device may add it.
    """

    axes: tuple[str | None, ...] = ()
    added_once: bool = False

    def axis_over(self, mesh_axis: str) -> int | None:
        """Return which of the parameter's axes is split over a mesh axis, if any."""
        return self.axes.index(mesh_axis) if mesh_axis in self.axes else None


EVERYWHERE = Sharding()
Shardings = Mapping[tuple[str, ...], Sharding]
"""How each parameter of a model is split, by its path within a layer, or outside of them."""


def sharding_of(path: KeyPath, shardings: Shardings) -> Sharding:
    """Return that of a leaf of a parameter tree, or of a tree of the same names around it."""
    names = tuple(key.key for key in path if isinstance(key, DictKey))
    ends = (names[start:] for start in range(len(names)))
    return next((shardings[end] for end in ends if end in shardings), EVERYWHERE)


def spec_of(path: KeyPath, leaf: Any, shardings: Shardings) -> PartitionSpec:
    """Return how a leaf of the training state is split; a stack of layers has an axis in front."""
    axes = sharding_of(path, shardings).axes
    if not any(axes):
        return PartitionSpec()
    return PartitionSpec(*(None,) * (len(leaf.shape) - len(axes)), *axes)


@dataclass(frozen=True)
class Collectives:
    """How many devices share the parameters (fsdp), a window (context), and heads (tensor).

    data: how many groups of them there are, which have other windows.
    """

    fsdp: int = 1
    context: int = 1
    tensor: int = 1
    data: int = 1

    @property
    def part(self) -> ZigZag | None:
        """Which tokens of every window this device computes; None: all of them."""
        if self.context == 1:
            return None
        return ZigZag(jax.lax.axis_index(CONTEXT), self.context)

    def own_tokens(self, x: Any, axis: int) -> Any:
        """Return this device's tokens of an array, of jax or numpy, with all of its windows'."""
        part = self.part
        return x if part is None else part.own(x, axis)

    def all_tokens(self, x: Array, axis: int) -> Array:
        """Gather the tokens, of floating point, of all devices that share a window, in order."""
        if self.context == 1:
            return x
        return restored(_gathered(CONTEXT, axis, str(x.dtype), x), axis, self.context)

    def sum_over_tensor(self, x: Array) -> Array:
        """Add up the shares of the devices that share heads, hidden layer or vocabulary."""
        return x if self.tensor == 1 else jax.lax.psum(x, TENSOR)

    def mean_over_tokens(self, x: Array) -> Array:
        """Average over the devices that compute other tokens, as many each."""
        others = self.data * self.fsdp * self.context
        return x if others == 1 else jax.lax.pmean(x, (DATA, FSDP, CONTEXT))

    def max_over_tensor(self, x: Array) -> Array:
        """Return the largest of these devices' numbers. It has no derivative."""
        return x if self.tensor == 1 else jax.lax.pmax(jax.lax.stop_gradient(x), TENSOR)

    def own_vocabulary(self, size: int) -> Any:
        """Return the first token of this device's part of the vocabulary, `size` tokens."""
        return 0 if self.tensor == 1 else jax.lax.axis_index(TENSOR) * size

    def whole_vocabulary(self, x: Array) -> Array:
        """Gather the last axis over the devices that share the vocabulary."""
        return x if self.tensor == 1 else jax.lax.all_gather(x, TENSOR, axis=x.ndim - 1, tiled=True)

    def whole(self, params: Tree, dtype: str, shardings: Shardings) -> Tree:
        """Gather a layer's parameters, or those outside, over the devices that share each copy."""

        def gather(path: KeyPath, leaf: Array) -> Array:
            sharding = sharding_of(path, shardings)
            if sharding.added_once and self.tensor > 1:
                leaf = jnp.where(jax.lax.axis_index(TENSOR) == 0, leaf, jnp.zeros_like(leaf))
            axis = sharding.axis_over(FSDP)
            return leaf if axis is None or self.fsdp == 1 else _gathered(FSDP, axis, dtype, leaf)

        return jax.tree_util.tree_map_with_path(gather, params)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _gathered(over: str, axis: int, dtype: str, shard: Float[Array, "..."]) -> Float[Array, "..."]:
    """All-gather over a mesh axis in some dtype; its derivative is a reduce-scatter in float32."""
    return _gathered_forward(over, axis, dtype, shard)[0]


def _gathered_forward(
    over: str, axis: int, dtype: str, shard: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Any]:
    # a checkpoint policy sees the primitives of this function by name
    gathered = jax.lax.all_gather(shard.astype(dtype), over, axis=axis, tiled=True)
    return gathered, jnp.zeros((), shard.dtype)


def _gathered_backward(
    over: str, axis: int, dtype: str, like: Any, d: Float[Array, "..."]
) -> tuple[Array]:
    wide = d.astype(jnp.float32)
    summed = jax.lax.psum_scatter(wide, over, scatter_dimension=axis, tiled=True)
    return (summed.astype(like.dtype),)


_gathered.defvjp(_gathered_forward, _gathered_backward)

SINGLE_DEVICE = Collectives()
