"""How the tensors of a checkpoint hold the decoder's parameters.

A family's table is a list of rows, used in both directions. A tensor holds one or several of our
parameters of one layer, or of one of its experts. A kernel's last axis is that of its outputs, but
weights of transformers have the outputs before the inputs.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Row(NamedTuple):
    """A tensor, and the parameters that it holds.

    name:   the tensor's name, with {} for the number of the layer, and for that of the expert or
            head if each has a tensor: then these are the parameter's first axes.
    paths:  the parameters, in the order in which the tensor holds their outputs; of a layer those
            of `layers`, which stands for every stack.
    groups: the outputs are ordered by group first, then by parameter. GPT-NeoX: one group per head.
    inputs_first: kernels are stored as here, their inputs before their outputs (gpt-oss's experts).
    one_row: a vector is stored as a matrix of one row (ERNIE).
    convolves: kernels of a convolution have an axis of size 1 before the last one there.
    """

    name: str
    paths: tuple[str, ...]
    groups: int = 1
    inputs_first: bool = False
    one_row: bool = False
    convolves: bool = False

    def transposes(self, path: str) -> bool:
        """Whether the tensor holds the transpose of one of its parameters."""
        return path.endswith("/kernel") and not self.inputs_first

    def stored_shape(self, path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one of its parameters as the tensor has it."""
        shape = (*shape[:-2], shape[-1], shape[-2]) if self.transposes(path) else shape
        return (1, *shape) if self.one_row else shape


class Tensor(NamedTuple):
    """A row's tensor in one model.

    paths:  of its parameters.
    at:     where in these it is: its layer of the stack, and its expert or head; () outside.
    shapes: of its parameters, as the tensor has them: the outputs before the inputs of a kernel.
    """

    row: Row
    paths: tuple[str, ...]
    at: tuple[int, ...]
    shapes: list[tuple[int, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in the file."""
        shape = self._joined
        return (*shape[:-1], 1, shape[-1]) if self.row.convolves else shape

    @property
    def _joined(self) -> tuple[int, ...]:
        """The shape of all parts; what is before the axis of outputs is one for all experts."""
        axis, first = self._outputs, self.shapes[0]
        return (*first[:axis], sum(shape[axis] for shape in self.shapes), *first[axis + 1 :])

    def split(self, tensor: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the parameters in a tensor."""
        axis, groups = self._outputs, self.row.groups
        before, after = self._joined[:axis], self._joined[axis + 1 :]
        grouped = tensor.reshape(*before, groups, -1, *after)
        ends = np.cumsum([shape[axis] // groups for shape in self.shapes])[:-1]
        parts = np.split(grouped, ends, axis=axis + 1)
        return self._transposed([part.reshape(*before, -1, *after) for part in parts])

    def join(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the tensor that holds these parameters: the inverse of `split`."""
        axis, groups = self._outputs, self.row.groups
        before, after = self._joined[:axis], self._joined[axis + 1 :]
        grouped = [part.reshape(*before, groups, -1, *after) for part in self._transposed(parts)]
        # a view that is not contiguous would be written to safetensors wrongly, without an error
        return np.ascontiguousarray(np.concatenate(grouped, axis=axis + 1).reshape(self.shape))

    @property
    def _outputs(self) -> int:
        """The axis of outputs: the last but one of matrices, of whatever else the last."""
        matrix = self.paths[0].endswith(("/kernel", "/embedding")) and not self.row.inputs_first
        return len(self.shapes[0]) - (2 if matrix else 1)

    def _transposed(self, parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Turn weights [outputs, inputs] into kernels [inputs, outputs] or back."""
        return [
            part.swapaxes(-1, -2) if self.row.transposes(path) else part
            for path, part in zip(self.paths, parts, strict=True)
        ]


def tensors_of(
    rows: Sequence[Row], shapes: Mapping[str, tuple[int, ...]], stacks: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """Return a model's tensors by name, in the order in which they are written.

    rows: the family's; those of parameters that the model lacks are left out.
    shapes: of the parameters, by path. stacks: the numbers of the layers of each.
    """
    tensors: dict[str, Tensor] = {}

    def add(stack: str = "layers", layer: int = 0, *index: int) -> None:
        """Add the tensors of a layer, given its index in a stack; without, those outside."""
        for row in rows:
            paths = tuple(path.replace("layers/", f"{stack}/", 1) for path in row.paths)
            axes = row.name.count("{}")
            if bool(index) != bool(axes) or not shapes.keys() >= set(paths):
                continue
            outputs_first = [row.stored_shape(path, shapes[path][axes:]) for path in paths]
            for rest in itertools.product(*map(range, shapes[paths[0]][len(index) : axes])):
                numbers = (layer, *rest) if index else ()
                tensor = Tensor(row, paths, (*index, *rest), outputs_first)
                tensors[row.name.format(*numbers)] = tensor

    add()
    places = {layer: (name, at) for name, held in stacks.items() for at, layer in enumerate(held)}
    for layer, (name, at) in sorted(places.items()):
        add(name, layer, at)
    known = {path for tensor in tensors.values() for path in tensor.paths}
    if unknown := sorted(shapes.keys() - known):
        raise ValueError(f"the parameter {unknown[0]} has no tensor in this family")
    return tensors
