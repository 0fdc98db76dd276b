"""How the tokens of a window read each other: what attention and recurrences share.

Shapes: B batch, S tokens per window, T of them computed, D model, N heads, L layers, C distances;
tokens: B·S, the windows laid end to end; computed: B·T, the last T tokens of every window. An axis
marked # may have size 1.
"""

from dataclasses import dataclass, field

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from rope_jax.blocks.base import BlockConfig, DecoderSpec, weights_in
from rope_jax.blocks.cache import Cache
from rope_jax.positions.bands import Rotation, RotationsByLayer
from rope_jax.positions.mask import BandMask


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerInputs:
    """The inputs of the layers besides the residual stream.

    Every array has a leading axis of size L, or of size 1 if all layers share it. `at` removes it.

    rotations:   how far queries and keys are rotated, one for each band of a position map; or what
                 each layer makes its own of.
    query_scale: multiplies the whole query, rotated or not; float32.
    encoding:    what the encoding needs inside attention; float32.
    segment_ids: which document a token belongs to, of all tokens in a cache if there is one; None
                 if each window is one document.
    bias:        added to the logits by head and distance.
    masks:       which keys each band of a position map holds; static.
    last:        compute only this many tokens at the end of each window; None: all; static.
    first:       index in the cache of the first token; None: the tokens are whole windows.
    embeddings:  of every token, added in each layer (Gemma 4); None: none.
    shared:      keys and values of the layer whose ones this layer reads; without a leading axis.
    """

    rotations: tuple[Rotation, ...] | RotationsByLayer
    query_scale: Float[Array, "*#layers #B #S"]
    encoding: dict[str, Array]
    segment_ids: Int[Array, "*#layers B _"] | None
    bias: Float[Array, "*#layers #B N C"] | None
    masks: tuple[BandMask, ...] = field(default=(BandMask(),), metadata={"static": True})
    last: int | None = field(default=None, metadata={"static": True})
    first: Int[Array, "*#layers"] | None = None
    embeddings: Float[Array, "*#layers tokens _"] | None = None
    shared: Cache | None = None

    def at(self, layer: int | Int[Array, ""]) -> "LayerInputs":
        """Return the inputs of one layer, without the leading axis."""
        return jax.tree.map(lambda leaf: leaf[0] if leaf.shape[0] == 1 else leaf[layer], self)

    def rotations_here(self) -> tuple[Rotation, ...]:
        """Return the rotations of one layer, whose inputs these are."""
        given = self.rotations
        return given.made() if isinstance(given, RotationsByLayer) else given

    @property
    def length(self) -> int:
        given = self.rotations
        if isinstance(given, RotationsByLayer):
            return given.positions.shape[-1]
        return given[0].key_cos.shape[-3]

    def documents(self, length: int) -> Int[Array, "B S"] | None:
        """Return the segment ids of the tokens that are read now, `length` of each window."""
        if self.segment_ids is None or self.first is None:
            return self.segment_ids
        return jax.lax.dynamic_slice_in_dim(self.segment_ids, self.first, length, 1)

    def computed(self, x: Float[Array, "tokens D"]) -> Float[Array, "computed D"]:
        """Return the tokens that the layer computes, of every window its last ones."""
        if self.last is None:
            return x
        windows = x.reshape(-1, self.length, x.shape[1])
        return windows[:, -self.last :].reshape(-1, x.shape[1])


@dataclass(frozen=True)
class AttentionSpan:
    """Which keys a layer sees, and whether it rotates: how the layers of a model differ.

    sliding_window:  how many keys a query sees, including its own; None: all up to its own.
    attention_chunk: tokens per chunk, of which a query sees its own up to itself; None: all.
    rotates:         whether the layer's scaling rotates; `qk_norm: rotated` asks.
    shares:          whether it reads the keys and values of the last layer with this span that has
                     its own.
    """

    sliding_window: int | None = None
    attention_chunk: int | None = None
    rotates: bool = True
    shares: bool = False


EVERY_KEY = AttentionSpan()


class Mixer(nnx.Module):
    """What a layer adds to each token of the tokens before it."""

    class Config(BlockConfig):
        """Settings of a mixer. The docstring is its entry in the documentation."""

        def build(
            self, spec: DecoderSpec, rngs: nnx.Rngs, span: AttentionSpan = EVERY_KEY
        ) -> "Mixer":
            raise NotImplementedError

        def flops_per_token(self, spec: DecoderSpec, span: AttentionSpan = EVERY_KEY) -> int:
            return 2 * weights_in(self.build, spec, span)

        def flops_per_pair(self, spec: DecoderSpec) -> int:
            """FLOPs of each pair of a query and a key; 0 if sums replace the pairs."""
            return 0

        def splits_windows(self, spec: DecoderSpec) -> bool:
            """Whether devices can share a window."""
            return False

        def tensor_sizes(self, spec: DecoderSpec) -> dict[str, int]:
            """Return what the mesh axis "tensor" has to divide, by its key in the config."""
            return {}

        def empty_cache(self, spec: DecoderSpec, batch: int, capacity: int, bands: int) -> Cache:
            """Return room for `capacity` tokens of each row."""
            raise NotImplementedError

    def __init__(self, spec: DecoderSpec) -> None:
        self.spec = spec
        self.cache: Cache | None = nnx.data(None)
        """What was read before, if a text is continued; after a call, with its tokens."""

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs
    ) -> Float[Array, "computed D"]:
        """Return what the computed tokens read from all tokens of their windows."""
        raise NotImplementedError
