"""How the tensors of a Hugging Face checkpoint correspond to the decoder's parameters.

A family's table is a list of rows, used in both directions. A tensor holds one or several of our
parameters of one layer. Their outputs are the tensor's first axis, while a kernel's is its last.

Shapes: L layers, O outputs, I inputs.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict
from numpy.typing import NDArray

from rope_jax.model.decoder import Params

_LAYER = re.compile(r"\.(0|[1-9][0-9]{0,8})\.")


class Row(NamedTuple):
    """A tensor, and the parameters that it holds.

    name:   the tensor's name, with {} for the number of the layer.
    paths:  the parameters, in the order in which the tensor holds their outputs.
    groups: the outputs are ordered by group first, then by parameter. GPT-NeoX: one group per head.
    """

    name: str
    paths: tuple[str, ...]
    groups: int = 1

    def split(self, tensor: NDArray[Any], outputs: Sequence[int]) -> list[NDArray[Any]]:
        """Return the parameters in a tensor [ΣO, …]. outputs: O of each."""
        rest = tensor.shape[1:]
        grouped = tensor.reshape(self.groups, -1, *rest)
        ends = np.cumsum([count // self.groups for count in outputs])[:-1]
        parts = [part.reshape(-1, *rest) for part in np.split(grouped, ends, axis=1)]
        return [_transposed(path, part) for path, part in zip(self.paths, parts, strict=True)]

    def join(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the tensor that holds these parameters: the inverse of `split`."""
        own = [_transposed(path, part) for path, part in zip(self.paths, parts, strict=True)]
        rest = own[0].shape[1:]
        grouped = [part.reshape(self.groups, -1, *rest) for part in own]
        # a view that is not contiguous would be written to safetensors wrongly, without an error
        return np.ascontiguousarray(np.concatenate(grouped, axis=1).reshape(-1, *rest))


def _transposed(path: str, array: NDArray[Any]) -> NDArray[Any]:
    """Turn a weight [O, I] into a kernel [I, O] or back; leave everything else as it is."""
    return array.T if path.endswith("/kernel") else array


class Table:
    """The rows of a family that a model with these parameters has."""

    def __init__(self, rows: Iterable[Row], like: Params) -> None:
        """like: the shapes of the parameters."""
        self.shapes = {path: leaf.shape for path, leaf in flatten_dict(like, sep="/").items()}
        self._rows = {row.name: row for row in rows if set(row.paths) <= set(self.shapes)}
        covered = {path for row in self._rows.values() for path in row.paths}
        if unknown := sorted(set(self.shapes) - covered):
            raise ValueError(f"the parameter {unknown[0]} has no tensor in this family")

    def find(self, name: str) -> tuple[Row, int | None] | None:
        """Return a tensor's row, and its layer if it is in one; None: it has no row."""
        in_layer = _LAYER.search(name)
        layer = None if in_layer is None else int(in_layer[1])
        row = self._rows.get(name if layer is None else _LAYER.sub(".{}.", name, count=1))
        if row is None or row.name.format(layer) != name:
            return None
        if layer is not None and layer >= self.shapes[row.paths[0]][0]:
            return None
        return row, layer

    def names(self) -> list[tuple[str, Row, int | None]]:
        """Return all tensors in the order in which they are written: name, row, layer."""
        outside = [(name, row, None) for name, row in self._rows.items() if "{}" not in name]
        stacked = [(name, row) for name, row in self._rows.items() if "{}" in name]
        layers = max((self.shapes[row.paths[0]][0] for _, row in stacked), default=0)
        return outside + [
            (name.format(layer), row, layer) for layer in range(layers) for name, row in stacked
        ]

    def tensor_shape(self, row: Row, layer: int | None) -> tuple[int, ...]:
        """Return the shape of a row's tensor."""
        shapes = self._shapes(row, layer)
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def outputs(self, row: Row, layer: int | None) -> list[int]:
        """Return O of each of a row's parameters."""
        return [shape[0] for shape in self._shapes(row, layer)]

    def _shapes(self, row: Row, layer: int | None) -> list[tuple[int, ...]]:
        """Return the shapes of a row's parameters in one layer, as the tensor has them."""
        shapes = [(path, self.shapes[path][0 if layer is None else 1 :]) for path in row.paths]
        return [shape[::-1] if path.endswith("/kernel") else shape for path, shape in shapes]
