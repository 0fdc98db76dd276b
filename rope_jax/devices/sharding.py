"""Which axis of which parameter is split over which axis of the mesh, by the parameter's name."""

from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec

DATA, FSDP, CONTEXT, TENSOR = "data", "fsdp", "context", "tensor"
AXES = (DATA, CONTEXT, FSDP, TENSOR)
"""The axes of the mesh. Neighbouring devices differ in the last one, which exchanges the most. A
sweep turns data into context; these are neighbours too, so that each device keeps its shards."""
ROWS = (DATA, FSDP)
"""The axes over which the rows of a batch are split."""


class Rule(NamedTuple):
    """How a parameter is split, without its axis of layers.

    axes:       the mesh axis that splits each of its axes; None: not split.
    added_once: a bias that is added to a sum over "tensor", so only one device may add it.
    """

    axes: tuple[str | None, ...]
    added_once: bool = False

    def axis_over(self, mesh_axis: str) -> int | None:
        """Return which of the parameter's axes is split over a mesh axis; None: none is."""
        return self.axes.index(mesh_axis) if mesh_axis in self.axes else None


# The outputs of these projections are split over "tensor": heads, and the MLP's hidden layer.
_COLUMNS = {"kernel": Rule((FSDP, TENSOR)), "bias": Rule((TENSOR,))}
# Their inputs are: each device computes a share of every output.
_ROWS = {"kernel": Rule((TENSOR, FSDP)), "bias": Rule((None,), added_once=True)}
RULES: dict[str, dict[str, Rule]] = {
    "embed_tokens": {"embedding": Rule((TENSOR, FSDP))},
    "q_proj": _COLUMNS,
    "k_proj": _COLUMNS,
    "v_proj": _COLUMNS,
    "o_proj": _ROWS,
    "gate_proj": _COLUMNS,
    "up_proj": _COLUMNS,
    "down_proj": _ROWS,
    "lm_head": {"kernel": Rule((FSDP, TENSOR))},
}
"""The rule of each parameter of a module. What is not here has few numbers: every device has all
of the norms and of an encoding's parameters."""


def rule_of(path: tuple[Any, ...]) -> Rule:
    """Return the rule of a leaf of a parameter tree, or of a tree of the same names around it."""
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    if len(names) < 2:
        return Rule(())
    return RULES.get(names[-2], {}).get(names[-1], Rule(()))


def spec_of(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
    """Return how a leaf of the training state is split; a stack of layers has an axis in front."""
    axes = rule_of(path).axes
    if not any(axes):
        return PartitionSpec()
    return PartitionSpec(*(None,) * (len(leaf.shape) - len(axes)), *axes)
