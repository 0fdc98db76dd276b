"""How the tensors of a Hugging Face checkpoint correspond to the decoder's parameters.

A family's table is a list of rows, used in both directions. A tensor holds one or several of our
parameters of one layer. Their outputs are the tensor's first axis, while a kernel's is its last.

Shapes: L layers, O outputs, I inputs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
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
        return [_turned(path, part) for path, part in zip(self.paths, parts, strict=True)]

    def join(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the tensor that holds these parameters: the inverse of `split`."""
        turned = [_turned(path, part) for path, part in zip(self.paths, parts, strict=True)]
        rest = turned[0].shape[1:]
        grouped = [part.reshape(self.groups, -1, *rest) for part in turned]
        # a view that is not contiguous would be written to safetensors wrongly, without an error
        return np.ascontiguousarray(np.concatenate(grouped, axis=1).reshape(-1, *rest))


def _turned(path: str, array: NDArray[Any]) -> NDArray[Any]:
    """Turn a weight [O, I] into a kernel [I, O] or back; leave everything else as it is."""
    return array.T if path.endswith("/kernel") else array


@dataclass(frozen=True)
class Place:
    """A parameter's place for one tensor: its path, and the layer if it is stacked."""

    path: str
    layer: int | None


class Table:
    """The rows of a family that a model with these parameters has."""

    def __init__(self, rows: Iterable[Row], like: Params) -> None:
        """like: the shapes of the parameters."""
        self.shapes = {path: leaf.shape for path, leaf in flattened(like).items()}
        self._rows = {row.name: row for row in rows if set(row.paths) <= set(self.shapes)}
        covered = {path for row in self._rows.values() for path in row.paths}
        if unknown := sorted(set(self.shapes) - covered):
            raise ValueError(f"the parameter {unknown[0]} has no tensor in this family")

    def find(self, name: str) -> tuple[Row, list[Place]] | None:
        """Return the row of a tensor and the places of its parameters; None: it has no row."""
        found = _LAYER.search(name)
        layer = None if found is None else int(found[1])
        row = self._rows.get(name if layer is None else _LAYER.sub(".{}.", name, count=1))
        if row is None or row.name.format(layer) != name:
            return None
        if layer is not None and layer >= self.shapes[row.paths[0]][0]:
            return None
        return row, [Place(path, layer) for path in row.paths]

    def names(self) -> list[tuple[str, Row, int | None]]:
        """Return all tensors in the order in which they are written: name, row, layer."""
        outside = [(name, row, None) for name, row in self._rows.items() if "{}" not in name]
        stacked = [(name, row) for name, row in self._rows.items() if "{}" in name]
        layers = max((self.shapes[row.paths[0]][0] for _, row in stacked), default=0)
        return outside + [
            (name.format(layer), row, layer) for layer in range(layers) for name, row in stacked
        ]

    def shape(self, place: Place) -> tuple[int, ...]:
        """Return the shape of one layer of a parameter, or of a parameter outside the layers."""
        shape = self.shapes[place.path]
        return shape if place.layer is None else shape[1:]

    def tensor_shape(self, row: Row, layer: int | None) -> tuple[int, ...]:
        """Return the shape of a row's tensor."""
        shapes = [self.shape(Place(path, layer)) for path in row.paths]
        turned = [
            shape[::-1] if path.endswith("/kernel") else shape
            for path, shape in zip(row.paths, shapes, strict=True)
        ]
        return (sum(shape[0] for shape in turned), *turned[0][1:])

    def outputs(self, row: Row, layer: int | None) -> list[int]:
        """Return O of each of a row's parameters."""
        shapes = [self.shape(Place(path, layer)) for path in row.paths]
        return [
            shape[-1] if path.endswith("/kernel") else shape[0]
            for path, shape in zip(row.paths, shapes, strict=True)
        ]


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dictionaries by path, such as layers/mlp/up_proj/kernel."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        found |= flattened(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return found


def nested(leaves: Mapping[str, Any]) -> Params:
    """Undo `flattened`."""
    tree: Params = {}
    for path, leaf in leaves.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = leaf
    return tree
