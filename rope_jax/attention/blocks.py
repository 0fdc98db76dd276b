"""Windows cut into blocks of queries and keys, and the logits of a pair of blocks.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim,
block: tokens per block; m blocks of queries, n blocks of keys. An axis marked # may have size 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rope_jax.positions.interaction import Interaction
from rope_jax.positions.scores import product, stacked, unstacked
from rope_jax.positions.visible import Visible

Mask = Float[Array, "block block"] | None


class Settings(NamedTuple):
    """Static settings, compiled into the program; see `blockwise`.

    block: the exact number of tokens per block.
    """

    interaction: Interaction
    block: int


class Offsets(NamedTuple):
    """Which key blocks a band needs, by how many blocks they lie before the query block's diagonal.

    partial: blocks that hold visible and hidden keys, by distance.
    first, last: between them, included, lie the blocks whose keys are all visible by distance;
             last is None if these go on to the start of the window.
    """

    partial: tuple[int, ...]
    first: int
    last: int | None


def offsets(visible: Visible, block: int) -> Offsets:
    """Return which offsets a band needs; those of the queries' own keys have offset 0.

    The pairs of tokens of two blocks at offset o have distances from (o − 1)·block + 1 to
    (o + 1)·block − 1.
    """
    nearest, beyond = visible.nearest, visible.beyond
    touched = max(0, -(-(nearest - block + 1) // block))
    first = max(1, -(-(nearest + block - 1) // block))
    if beyond is None:
        return Offsets(tuple(range(touched, first)), first, None)
    last_touched = (beyond + block - 2) // block
    last = (beyond - block) // block
    partial = [o for o in range(touched, last_touched + 1) if not first <= o <= last]
    return Offsets(tuple(partial), first, last)


class Blocks:
    """How one window is cut into blocks, and which blocks of queries and keys see each other.

    The queries are the last T of the S tokens. Both are padded at the front to whole blocks, so
    their ends stay aligned and query block i lies on the diagonal of key block `diagonal(i)`.

    query_padding: tokens of padding before the queries.
    key_padding:   tokens of padding before the keys.
    blocks_before: key blocks before the diagonal of query block 0.
    segment_ids:   [n, B, block], or None.
    places:        every token's number in its own document, [n, #B, block].
    """

    def __init__(
        self, settings: Settings, queries: int, keys: int, segment_ids: Int[Array, "B S"] | None
    ) -> None:
        self.settings, block = settings, settings.block
        self.query_padding, self.key_padding = -queries % block, -keys % block
        self.blocks_before = (keys + self.key_padding - queries - self.query_padding) // block
        self.segment_ids = None
        places = jnp.arange(-self.key_padding, keys)[None]
        if segment_ids is not None:
            padded = jnp.pad(segment_ids, ((0, 0), (self.key_padding, 0)), mode="edge")
            places = places_in_document(padded)
            self.segment_ids = self._cut(padded)
        self.places = self._cut(places)
        within = jnp.arange(block)[:, None] - jnp.arange(block)[None]
        # Here, outside all loops: computed inside them, masks would take as long as the rest.
        self._masks = {
            (visible, offset): _hiding(~visible.by_distance(within + offset * block))
            for visible in settings.interaction.visible
            for offset in offsets(visible, block).partial
        }

    def diagonal(self, i: Int[Array, ""]) -> Int[Array, ""]:
        """Return the key block of query block i's own tokens, the last one it sees."""
        return i + self.blocks_before

    def visit(
        self,
        visible: Visible,
        i: Int[Array, ""],
        see: Callable[[Int[Array, ""], Any, Mask], Any],
        state: Any,
        *,
        diagonal: bool = True,
    ) -> Any:
        """Fold see(j, state, mask) over the key blocks that query block i needs in a band.

        mask: hides what the distance hides; None: nothing.
        diagonal: whether to include the block of the queries' own keys.
        """
        needed, own = offsets(visible, self.settings.block), self.diagonal(i)
        start = 0 if needed.last is None else jnp.maximum(0, own - needed.last)
        state = jax.lax.fori_loop(
            start, self._end(visible, own - needed.first), lambda j, s: see(j, s, None), state
        )
        for offset in needed.partial:
            mask = self._masks[visible, offset]
            if offset == 0:
                state = see(own, state, mask) if diagonal else state
                continue

            def see_masked(j: Array, state: Any, mask: Mask = mask) -> Any:
                return see(j, state, mask)

            # no iteration or one: the window may begin after this block
            last = own - offset
            state = jax.lax.fori_loop(
                jnp.maximum(0, last), self._end(visible, last), see_masked, state
            )
        return state

    def on_diagonal(self, visible: Visible) -> Mask:
        """Return the mask of the block of the queries' own keys."""
        return self._masks[visible, 0]

    def _end(self, visible: Visible, last: Int[Array, ""]) -> Int[Array, ""]:
        """Return the end of the key blocks up to `last` that a band needs."""
        if visible.first is None or self.segment_ids is not None:
            return last + 1
        # one document, whose first tokens lie in the first blocks
        sinks = -(-(visible.first + self.key_padding) // self.settings.block)
        return jnp.minimum(last + 1, sinks)

    def logits(
        self,
        numbers: Any,
        query: Float[Array, "B K G block H"],
        key: Float[Array, "B K block H"],
        band: Visible,
        mask: Mask,
        i: Int[Array, ""],
        j: Int[Array, ""],
    ) -> Float[Array, "B K G block block"]:
        """Return the logits of query block i and key block j in a band, −∞ where a key is hidden."""
        query_index, key_index = self._indices(i, j)
        logits = self.settings.interaction.scores(numbers, query, key, query_index, key_index)
        if mask is not None:
            logits = logits + mask[None, None, None]
        if band.goes_by_place:
            seen = band.by_place(self.places[self.diagonal(i)], self.places[j])
            logits = logits + _hiding(~seen)[:, None, None]
        if self.key_padding:
            # Not −∞: a query before the first key sees only padding; its row_sum must not be 0.
            padding = jnp.where(key_index < 0, np.float32(-1e30), np.float32(0))
            logits = logits + padding[None, None, None, None]
        if self.segment_ids is not None:
            own, others = self.segment_ids[self.diagonal(i)], self.segment_ids[j]
            logits = logits + _hiding(own[:, :, None] != others[:, None, :])[:, None, None]
        return logits

    def weighted_values(
        self,
        numbers: Any,
        weights: Float[Array, "B K G block block"],
        values: Float[Array, "n B K block V"],
        i: Int[Array, ""],
        j: Int[Array, ""],
    ) -> Float[Array, "B K G block V"]:
        """Return weights · values of key block j, and what the interaction adds, in float32."""
        rows = stacked(weights.astype(values.dtype))
        out = unstacked(product(rows, values[j]), weights.shape[2])
        added = self.settings.interaction.values
        return out if added is None else out + added(numbers, weights, *self._indices(i, j))

    def value_gradients(
        self,
        numbers: Any,
        probabilities: Float[Array, "B K G block block"],
        values: Float[Array, "n B K block V"],
        dout: Float[Array, "B K G block V"],
        i: Int[Array, ""],
        j: Int[Array, ""],
        d_numbers: Any,
    ) -> tuple[Float[Array, "B K G block block"], Float[Array, "B K block V"], Any]:
        """Return the gradients of `weighted_values` by weights, values and numbers.

        d_numbers: the last one is added to it.
        """
        rows = stacked(dout)
        d_weights = unstacked(product(rows, values[j].swapaxes(-1, -2)), dout.shape[2])
        d_values = product(stacked(probabilities.astype(values.dtype)).swapaxes(-1, -2), rows)
        added = self.settings.interaction.values
        if added is None:
            return d_weights, d_values, d_numbers
        index = self._indices(i, j)
        _, pull_back = jax.vjp(lambda n, w: added(n, w, *index), numbers, probabilities)
        more_d_numbers, more_d_weights = pull_back(dout.astype(jnp.float32))
        return (
            d_weights + more_d_weights,
            d_values,
            jax.tree.map(jnp.add, d_numbers, more_d_numbers),
        )

    def _indices(
        self, i: Int[Array, ""], j: Int[Array, ""]
    ) -> tuple[Int[Array, " block"], Int[Array, " block"]]:
        """Return the places in the window of query block i and key block j; below 0 is padding."""
        block = self.settings.block
        query = self.diagonal(i) * block - self.key_padding + jnp.arange(block)
        return query, j * block - self.key_padding + jnp.arange(block)

    def of_queries(
        self, x: Float[Array, "B T N H"], kv_heads: int
    ) -> Float[Array, "m B K G block H"]:
        """Cut queries, or an array of their shape, into blocks."""
        x = jnp.pad(x, ((0, 0), (self.query_padding, 0), (0, 0), (0, 0)))
        batch, _, heads, width = x.shape
        x = x.reshape(batch, -1, self.settings.block, kv_heads, heads // kv_heads, width)
        return x.transpose(1, 0, 3, 4, 2, 5)

    def of_keys(self, x: Float[Array, "B S K H"]) -> Float[Array, "n B K block H"]:
        """Cut keys or values into blocks."""
        x = jnp.pad(x, ((0, 0), (self.key_padding, 0), (0, 0), (0, 0)))
        x = x.reshape(x.shape[0], -1, self.settings.block, *x.shape[2:])
        return x.transpose(1, 0, 3, 2, 4)

    def merged(self, x: Float[Array, "m B K G block H"], length: int) -> Float[Array, "B T N H"]:
        """Put blocks and heads back together, and return the last `length` tokens."""
        padded = x.shape[0] * self.settings.block
        x = x.transpose(1, 0, 4, 2, 3, 5).reshape(x.shape[1], padded, -1, x.shape[-1])
        return x[:, padded - length :]

    def _cut(self, x: Int[Array, "#B padded"]) -> Int[Array, "n #B block"]:
        return x.reshape(x.shape[0], -1, self.settings.block).swapaxes(0, 1)


def places_in_document(segment_ids: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Return every token's number in its own document, from 0."""
    index = jnp.arange(segment_ids.shape[1])[None]
    begins = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)


def _hiding(hidden: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the additive mask: −∞ where a key is hidden, else 0."""
    return jnp.where(hidden, -jnp.inf, 0.0).astype(jnp.float32)
