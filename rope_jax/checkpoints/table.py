"""How the tensors of a Hugging Face checkpoint correspond to the decoder's parameters.

A family's table is a list of rows, used in both directions. A tensor holds one or several of our
parameters of one layer. Their outputs are the tensor's first axis, while a kernel's is its last.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from rope_jax.model.decoder import Params


class Row(NamedTuple):
    """A tensor, and the parameters that it holds.

    name:   the tensor's name, with {} for the number of the layer.
    paths:  the parameters, in the order in which the tensor holds their outputs.
    groups: the outputs are ordered by group first, then by parameter. GPT-NeoX: one group per head.
    """

    name: str
    paths: tuple[str, ...]
    groups: int = 1


class Tensor(NamedTuple):
    """A row's tensor in one model.

    layer:  of the stacked parameters; None if it is outside the layers.
    shapes: of its parameters, as the tensor has them: outputs first.
    """

    row: Row
    layer: int | None
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

    def tensor(row: Row, layer: int | None) -> Tensor:
        own = [(path, shapes[path][0 if layer is None else 1 :]) for path in row.paths]
        outputs_first = [shape[::-1] if path.endswith("/kernel") else shape for path, shape in own]
        return Tensor(row, layer, outputs_first)

    return {row.name: tensor(row, None) for row in present if row not in stacked} | {
        row.name.format(layer): tensor(row, layer) for layer in range(layers) for row in stacked
    }
