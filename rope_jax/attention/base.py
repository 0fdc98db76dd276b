"""The base class of every attention backend.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim of queries and
keys, V that of values.
"""

from typing import ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from rope_jax.positions.interaction import Interaction, Params
from rope_jax.positions.zigzag import ZigZag

# The name of what a remat policy keeps of attention for the backward pass.
ATTENDED = "attended"
# What JAX calls the forward pass of cuDNN's attention, whose results cannot be marked from outside.
CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"

Arrays = TypeVar("Arrays")


class Inputs(NamedTuple):
    """The arrays that attention is computed from.

    queries, keys: rotated, one array for each band of an `Interaction`.
    segment_ids:   documents, whose tokens are consecutive; a query sees only its own. None: each
                   row is one document.
    part:          which of the S tokens the queries are, where devices share a window; without it,
                   they are the last T.
    first:         index of the first of T consecutive queries, where the S tokens are a cache that
                   goes on after the last query.
    params:        arrays for the interaction's functions; differentiable.
    """

    queries: tuple[Float[Array, "B T N H"], ...]
    keys: tuple[Float[Array, "B S K H"], ...]
    v: Float[Array, "B S K V"]
    segment_ids: Int[Array, "B S"] | None = None
    part: ZigZag | None = None
    params: Params = {}  # noqa: RUF012
    first: Int[Array, ""] | None = None

    @property
    def scaled_queries(self) -> list[Float[Array, "B T N H"]]:
        """The queries q/√H of each band. In float32: bfloat16 would round √48 by 0.13%."""
        return [(q.astype(jnp.float32) * q.shape[-1] ** -0.5).astype(q.dtype) for q in self.queries]

    def cast(self, dtype: DTypeLike) -> "Inputs":
        """Return it with queries, keys and values of another dtype."""
        queries, keys = (tuple(x.astype(dtype) for x in bands) for bands in self[:2])
        return self._replace(queries=queries, keys=keys, v=self.v.astype(dtype))


class Backend:
    """One way to compute causal attention, and what the rest has to know about it.

    Query head n reads key-value head n // (N/K). Masks count tokens in the window, never position
    ids, since positions may jump.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """What `rope-jax train --help model.attention` says about it."""
    platforms: ClassVar[tuple[str, ...]] = ("cpu", "gpu", "tpu")
    is_softmax: ClassVar[bool] = True
    """False: it computes another function of queries and keys, as `LinearAttention` does."""
    splits_windows: ClassVar[bool] = True
    """Whether several devices can each compute some of a window's queries."""
    quadratic_memory: ClassVar[bool] = False
    """Whether the weights of all pairs of tokens are in memory, and kept for the backward pass."""
    reads_caches: ClassVar[bool] = False
    """Whether queries may be anywhere in the window: `Inputs.first`."""
    has_precision: ClassVar[bool] = False
    """Whether `attend_bands` rounds factors itself; see there."""

    def obstacle(self, platform: str, dtype: str, head_dim: int) -> str | None:
        """Return why it cannot run, to follow its name in an error, or None if it can.

        platform: "cpu", "gpu" or "tpu". dtype: of the factors of its products. head_dim: the wider
            of H and V.
        """
        if platform in self.platforms:
            return None
        devices = {"cpu": "a CPU", "gpu": "a GPU", "tpu": "a TPU"}
        needed = " or ".join(devices[name] for name in self.platforms)
        return f"needs {needed}, but the platform is {platform}"

    def attend(
        self,
        q: Float[Array, "B T N H"],
        k: Float[Array, "B S K H"],
        v: Float[Array, "B S K V"],
        segment_ids: Int[Array, "B S"] | None = None,
        sliding_window: int | None = None,
        part: ZigZag | None = None,
    ) -> Float[Array, "B T N V"]:
        """Return softmax(q·kᵀ/√H)·v of one band, with a float32 softmax.

        sliding_window: how many keys a query sees, its own included; None: all up to its own.
        """
        inputs = Inputs((q,), (k,), v, segment_ids, part)
        return self.attend_bands(Interaction().within(sliding_window), inputs)

    def attend_bands(
        self, interaction: Interaction, inputs: Inputs, low_precision: bool = False
    ) -> Float[Array, "B T N V"]:
        """Return softmax(scores)·v over the keys of all bands: the method of a new backend.

        interaction: which keys each band holds, and how scores and values are computed; static.
        low_precision: round the factors of products to bfloat16. Only for a backend that
            `has_precision`; others are given queries, keys and values that are rounded already.
        """
        raise NotImplementedError


def attended(results: Arrays) -> Arrays:
    """Mark results of attention that the backward pass reads besides queries, keys and values.

    A function with a derivative of its own must mark all that its forward rule saves: otherwise the
    rest would be computed again, and so the output too.
    """
    return jax.tree.map(lambda x: checkpoint_name(x, ATTENDED), results)


def keep_attended(primitive: Primitive, *_: object, **parameters: object) -> bool:
    """Keep attention's results: a policy of `jax.checkpoint`."""
    marked = primitive.name == "name" and parameters["name"] == ATTENDED
    return marked or primitive.name == CUDNN_FORWARD
