"""How a window's tokens are divided over devices so that causal attention costs each the same.

A window of S tokens is cut into 2·count equal chunks, and device p holds chunks p and
2·count − 1 − p, which together see as many keys as those of any other device (Llama 3, arXiv
2407.21783, §3.3.2). Shapes: T = S/count tokens on each device.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int


@functools.partial(jax.tree_util.register_dataclass, data_fields=["index"], meta_fields=["count"])
@dataclass(frozen=True)
class ZigZag:
    """The tokens of one device: chunks `index` and 2·count − 1 − `index` of a window.

    index: the device's number among those that share the window; traced.
    count: how many devices share it; static.
    """

    index: Any  # when JAX takes trees apart, also what is no array
    count: int

    def starts(self, length: int) -> Int[Array, " 2"]:
        """Return the index of the first token of each chunk in a window of S = `length`."""
        chunk = length // (2 * self.count)
        return jnp.stack([self.index, 2 * self.count - 1 - self.index]) * chunk

    def own(self, x: Array | np.ndarray, axis: int) -> Array:
        """Return this device's tokens of an array with S of them along `axis`."""
        chunk = x.shape[axis] // (2 * self.count)
        parts = [
            jax.lax.dynamic_slice_in_dim(x, start, chunk, axis)
            for start in self.starts(x.shape[axis])
        ]
        return jnp.concatenate(parts, axis)


def restored(x: Array, axis: int, count: int) -> Array:
    """Put the tokens of device 0, of device 1, … along `axis` into their order in the window."""
    shape = x.shape
    axis %= x.ndim
    chunks = x.reshape(*shape[:axis], count, 2, shape[axis] // (2 * count), *shape[axis + 1 :])
    first = jax.lax.index_in_dim(chunks, 0, axis + 1, keepdims=False)
    second = jax.lax.index_in_dim(chunks, 1, axis + 1, keepdims=False)
    return jnp.concatenate([first, jnp.flip(second, axis)], axis).reshape(shape)


def tokens_of_parts(length: int, count: int) -> np.ndarray:
    """Return the index in the window of every token of device 0, 1, …: [count, T], on the host."""
    chunks = np.arange(length).reshape(2 * count, -1)
    return np.concatenate([chunks[:count], chunks[count:][::-1]], axis=1)
