"""The axes of the mesh, and how a tree of parameters is split over them, as blocks declare it."""

from typing import Any

import jax
from jax.sharding import PartitionSpec

from rope_jax.blocks import SHARDINGS
from rope_jax.blocks.base import FSDP, TENSOR, Sharding

DATA, CONTEXT = "data", "context"
AXES = (DATA, CONTEXT, FSDP, TENSOR)
"""The axes of the mesh. Neighbouring devices differ in the last one, which exchanges the most. A
sweep turns data into context; these are neighbours too, so that each device keeps its shards."""
ROWS = (DATA, FSDP)
"""The axes over which the rows of a batch are split."""


# Those outside the layers; what is neither here nor declared by a block, every device has whole.
_RULES = SHARDINGS | {
    ("embed_tokens", "embedding"): Sharding((TENSOR, FSDP)),
    ("lm_head", "kernel"): Sharding((FSDP, TENSOR)),
}


def rule_of(path: tuple[Any, ...]) -> Sharding:
    """Return the rule of a leaf of a parameter tree, or of a tree of the same names around it."""
    names = tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
    ends = (names[start:] for start in range(len(names)))
    return next((_RULES[end] for end in ends if end in _RULES), Sharding())


def spec_of(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
    """Return how a leaf of the training state is split; a stack of layers has an axis in front."""
    axes = rule_of(path).axes
    if not any(axes):
        return PartitionSpec()
    return PartitionSpec(*(None,) * (len(leaf.shape) - len(axes)), *axes)
