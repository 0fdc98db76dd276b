"""The base class of every attention backend. Imports no jax until one computes.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim of queries and
keys, V that of values.
"""

from typing import Any, ClassVar

# Tokens per block of `banded_blockwise`.
BLOCK = 512


class Backend:
    """One way to compute causal attention, and what the rest has to know about it.

    Query head n reads key-value head n // (N/K). Masks count tokens in the window, never position
    ids, since positions may jump. `part` (a `ZigZag`) says which of the S tokens the queries are,
    where devices share a window; None: the last T.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """What `rope-jax train --help model.attention` says about it."""
    platforms: ClassVar[tuple[str, ...]] = ("cpu", "gpu", "tpu")
    is_softmax: ClassVar[bool] = True
    """False: it computes another function of queries and keys, so the model is another one."""
    splits_windows: ClassVar[bool] = True
    """Whether several devices can each compute some of a window's queries."""
    quadratic_memory: ClassVar[bool] = False
    """Whether the weights of all pairs of tokens are in memory, and kept for the backward pass."""
    has_precision: ClassVar[bool] = False
    """Whether `attend_bands` takes `low_precision`, to multiply factors rounded to bfloat16. If
    not, it is given queries, keys and values in `product_dtype`."""

    def obstacle(self, platform: str, dtype: str, head_dim: int) -> str | None:
        """Return why it cannot run, to follow its name in an error; None if it can.

        platform: "cpu", "gpu" or "tpu". dtype: of the factors of its products.
        """
        if platform in self.platforms:
            return None
        devices = {"cpu": "a CPU", "gpu": "a GPU", "tpu": "a TPU"}
        needed = " or ".join(devices[name] for name in self.platforms)
        return f"needs {needed}, but the platform is {platform}"

    def block(self, rows: int) -> int:
        """Return the most tokens per block of what is left to `banded_blockwise`; rows: B·N."""
        return BLOCK

    def attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        segment_ids: Any = None,
        sliding_window: int | None = None,
        part: Any = None,
        **options: Any,
    ) -> Any:
        """Return softmax(q·kᵀ/√H)·v [B, T, N, V], with a float32 softmax; by default, one band.

        q: [B, T, N, H]. k: [B, S, K, H]. v: [B, S, K, V].
        segment_ids: documents [B, S]; a query sees only its own. None: each row is one document.
        sliding_window: how many keys a query sees, its own included; None: all up to its own.
        options: of `attend_bands`.
        """
        from rope_jax.positions.interaction import Interaction

        interaction = Interaction().within(sliding_window)
        return self.attend_bands((q,), (k,), v, segment_ids, interaction, {}, part, **options)

    def attend_bands(
        self,
        queries: tuple[Any, ...],
        keys: tuple[Any, ...],
        v: Any,
        segment_ids: Any,
        interaction: Any,
        params: Any,
        part: Any = None,
    ) -> Any:
        """Return softmax(scores)·v over the keys of all bands of an `Interaction`.

        queries, keys: rotated, one array for each band.
        interaction: which keys each band holds, and how scores and values are computed; static.
        params: a tree of float arrays for the interaction's functions; differentiable.

        By default `attend` for one band of dot products, and `banded_blockwise` for all else: maps,
        encodings' own scores, soft caps, sinks. A backend with a softmax defines one of the two.
        """
        if type(self).attend is Backend.attend:
            raise NotImplementedError(f"attention {self.name} defines neither of the two")
        if not interaction.is_plain:
            from rope_jax.attention.blockwise import banded_blockwise

            arrays = queries, keys, v, segment_ids
            block = self.block(v.shape[0] * queries[0].shape[2])
            return banded_blockwise(*arrays, interaction, params, part, block=block)
        (q,), (k,), (band,) = queries, keys, interaction.masks
        return self.attend(q, k, v, segment_ids, band.beyond, part)

    def attend_features(
        self, q: Any, k: Any, v: Any, rotate_queries: Any, rotate_keys: Any, segment_ids: Any
    ) -> Any:
        """Attention without a softmax: features of q and k are rotated, not q and k."""
        raise NotImplementedError
