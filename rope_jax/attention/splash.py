"""Splash attention: JAX's Pallas kernel for TPUs, which skips masked blocks. Memory is linear.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim of queries and
keys, V that of values.
"""

import math
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Array, Float

from rope_jax.attention.base import ATTENDED, Inputs
from rope_jax.attention.blockwise import PlainKernel
from rope_jax.positions.zigzag import ZigZag, tokens_of_parts

_LANES = 128  # the kernel's block sizes are multiples of this
_BLOCK = 512
# The kernel keeps 3 bytes for every pair of blocks in 1 MiB of scalar memory, and its set-up visits
# each pair, so blocks grow with the window beyond so many of them, as far as vector memory allows.
_MAX_BLOCKS = 256
_MAX_BLOCK = 2048
_MAX_QUERY_BLOCK = 1024

Indices = TypeVar("Indices", Array, np.ndarray)


class Splash(PlainKernel):
    """JAX's Pallas kernel for TPUs. Queries and keys are padded to whole blocks at their end, where
    causality hides the padding.

    interpret: run without a TPU, slowly, for tests.
    """

    name: ClassVar[str] = "splash"
    summary: ClassVar[str] = "kernel for TPU"
    platforms: ClassVar[tuple[str, ...]] = ("tpu",)

    def __init__(self, interpret: bool = False) -> None:
        self.interpret = interpret

    def attend_plain(self, inputs: Inputs, sliding_window: int | None) -> Float[Array, "B T N V"]:
        (q,), (k,), v, segment_ids, part, *_ = inputs
        queries, keys = q.shape[1], k.shape[1]
        blocks = _block_sizes(queries, keys, part is not None)
        rows, size = _rounded_up(queries, blocks.block_q), _rounded_up(keys, blocks.block_kv)
        mask = _Mask(_index_in_window(queries, keys, part, rows, size - 1), size, sliding_window)
        attend = kernel.make_splash_mha(
            masks.MultiHeadMask([mask] * q.shape[2]),
            block_sizes=blocks,
            head_shards=1,
            q_seq_shards=1 if part is None else part.count,
            residual_checkpoint_name=ATTENDED,
            interpret=self.interpret,
        )
        if part is not None:
            attend = _of_part(attend, part)
        ids = None
        if segment_ids is not None:
            of_queries = (
                segment_ids[:, keys - queries :] if part is None else part.own(segment_ids, 1)
            )
            of_queries = _pad(of_queries, rows, mode="edge")
            ids = kernel.SegmentIds(of_queries, _pad(segment_ids, size, mode="edge"))
        # The kernel takes one row [heads, S, H] at a time, and does not divide by √H.
        (q,) = inputs.scaled_queries
        q = _pad(q, rows)
        q, k, v = (x.swapaxes(1, 2) for x in (q, _pad(k, size), _pad(v, size)))
        out = jax.vmap(attend, in_axes=(0, 0, 0, None if ids is None else 0))(q, k, v, ids)
        return out.swapaxes(1, 2)[:, :queries].astype(v.dtype)


class _Mask(masks.Mask):
    """Causal attention of queries that stand anywhere in the window.

    q_sequence: the index in the window of every query.
    """

    def __init__(self, q_sequence: np.ndarray, keys: int, window: int | None) -> None:
        self.q_sequence, self._keys, self._window = q_sequence.astype(np.int32), keys, window

    def mask_function(self, query: Indices, key: Indices) -> Indices:
        """Return which keys are seen; the kernel calls it with the indices of a block."""
        seen = query >= key
        return seen if self._window is None else seen & (query - key < self._window)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.q_sequence.size, self._keys

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        """Return a block of the mask; one element stands for a block that is the same throughout.

        The kernel's set-up looks at every block, which would take minutes for long windows.
        """
        rows, columns = index
        query, key = self.q_sequence[rows], np.arange(columns.start, columns.stop)
        nearest, farthest = int(query.min() - key[-1]), int(query.max() - key[0])
        window = farthest + 1 if self._window is None else self._window
        if farthest < 0 or nearest >= window:
            return np.zeros((1, 1), bool)
        if nearest >= 0 and farthest < window:
            return np.ones((1, 1), bool)
        return self.mask_function(query[:, None], key[None])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Mask) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[bytes, int, int | None]:
        return self.q_sequence.tobytes(), self._keys, self._window


def _index_in_window(
    queries: int, keys: int, part: ZigZag | None, rows: int, padding: int
) -> np.ndarray:
    """Return the index in the window of every query, those of all parts one after another.

    Each part is padded to `rows`; `padding` is the last key, since seeing no key would give NaN.
    """
    index = np.arange(keys - queries, keys)[None]
    if part is not None:
        index = tokens_of_parts(keys, part.count)
    return np.pad(index, ((0, 0), (0, rows - queries)), constant_values=padding).reshape(-1)


def _block_sizes(queries: int, keys: int, is_part: bool) -> kernel.BlockSizes:
    """Return the sizes of blocks; those of short windows are single blocks."""
    most = _BLOCK
    while most < _MAX_BLOCK and keys > most * _MAX_BLOCKS:
        most *= 2
    of_keys = min(most, _rounded_up(keys, _LANES))
    at_once = min(of_keys, _BLOCK)
    most = min(most, _MAX_QUERY_BLOCK)
    of_queries = min(most, _rounded_up(queries, _LANES))
    if is_part and queries // 2 % _LANES == 0:  # no block with tokens of both chunks
        of_queries = math.gcd(queries // 2, most)
    return kernel.BlockSizes(
        block_q=of_queries,
        block_kv=of_keys,
        block_kv_compute=at_once,
        block_q_dkv=of_queries,
        block_kv_dkv=of_keys,
        block_kv_dkv_compute=at_once,
        block_q_dq=of_queries,
        block_kv_dq=of_keys,
    )


def _rounded_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _pad(x: Array, size: int, mode: str = "constant") -> Array:
    """Pad the tokens of an array [B, T, …] at their end."""
    return jnp.pad(x, ((0, 0), (0, size - x.shape[1]), *((0, 0),) * (x.ndim - 2)), mode=mode)


def _of_part(attend: kernel.SplashAttentionKernel, part: ZigZag) -> kernel.SplashAttentionKernel:
    """Return the kernel of one part: the arrays of its mask are split along the queries' axis.

    As `SplashAttentionKernel.manual_sharding_spec` does: the second axis of [heads, queries, keys].
    """

    def slice_of_part(x: Array) -> Array:
        axis = min(1, x.ndim - 1)
        size = x.shape[axis] // part.count
        return jax.lax.dynamic_slice_in_dim(x, part.index * size, size, axis)

    return jax.tree.map(slice_of_part, attend)
