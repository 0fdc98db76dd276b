"""Windows cut into blocks of queries and keys, and the logits of a pair of blocks.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim,
block: tokens per block; m blocks of queries, n blocks of keys. An axis marked # may have size 1.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rope_jax.attention.base import Inputs
from rope_jax.positions.interaction import (
    Block,
    Indices,
    Interaction,
    Logits,
    Params,
    ScoreFunction,
    product,
    stacked,
    unstacked,
)
from rope_jax.positions.mask import BandMask

State = TypeVar("State")


class Visit(NamedTuple):
    """Key blocks in which a query block needs the same bands.

    bands:  their numbers.
    first, last: how many blocks before the query block's diagonal they begin and, going back, end;
            last is None if they go on to the start of the window.
    masked: whether distances hide some of their keys from some of their queries;
            if so, it is one block.
    """

    bands: tuple[int, ...]
    first: int
    last: int | None
    masked: bool


def plan_visits(bands: tuple[BandMask, ...], block: int, key_blocks: int) -> list[Visit]:
    """Return the visits of a query block in a window of so many blocks, the nearest keys first.

    The pairs of tokens of two blocks at offset o have distances from (o − 1)·block + 1 to
    (o + 1)·block − 1. Bands that see only a document's first tokens have visits of their own, which
    end where those tokens end.
    """
    together = tuple(number for number, band in enumerate(bands) if band.first is None)
    alone = [(number,) for number, band in enumerate(bands) if band.first is not None]
    groups = (together, *alone)
    return [visit for group in groups for visit in _visits_of(group, bands, block, key_blocks)]


def _visits_of(
    group: tuple[int, ...], bands: tuple[BandMask, ...], block: int, key_blocks: int
) -> list[Visit]:
    limits = [bands[number].nearest for number in group]
    limits += [bands[number].beyond or 0 for number in group]
    visits: list[Visit] = []
    changes = max(limits) // block + 3  # the first offset from which on nothing changes
    for offset in range(min(changes, key_blocks)):
        distances = np.arange(_least_distance(offset, block), _greatest_distance(offset, block) + 1)
        seen = {number: bands[number].by_distance(distances) for number in group}
        needed = tuple(number for number in group if seen[number].any())
        whole = offset > 0 and all(seen[number].all() for number in needed)
        last = visits[-1] if visits else None
        if not needed:
            continue
        if last and whole and not last.masked and (last.bands, last.last) == (needed, offset - 1):
            visits[-1] = last._replace(last=offset)
        else:
            visits.append(Visit(needed, offset, offset, masked=not whole))
    if visits and any(bands[number].beyond is None for number in visits[-1].bands):
        visits[-1] = visits[-1]._replace(last=None)
    return visits


def _least_distance(offset: int, block: int) -> int:
    return max(0, (offset - 1) * block + 1)


def _greatest_distance(offset: int, block: int) -> int:
    return (offset + 1) * block - 1


class Blocks:
    """How one window is cut into blocks, and which blocks of queries and keys see each other.

    Query block i lies on the diagonal of key block `diagonal(i)`. If the queries are the last T of
    the S tokens, both are padded at the front to whole blocks, so that their ends stay aligned.
    Otherwise `inputs.part` says where they lie, and the block size must divide both halves.

    segment_ids:   [n, B, block], or None.
    document_positions: [n, #B, block].
    nearest:       the visit of the key block of a query block's own tokens.
    """

    def __init__(self, interaction: Interaction, block: int, inputs: Inputs) -> None:
        queries, keys = inputs.queries[0].shape[1], inputs.v.shape[1]
        segment_ids, self._diagonals = inputs.segment_ids, None
        if inputs.part is not None:
            first = inputs.part.starts(keys)[:, None] // block
            self._diagonals = (first + jnp.arange(queries // 2 // block)[None]).reshape(-1)
        self.interaction, self.block = interaction, block
        self.query_padding, self.key_padding = -queries % block, -keys % block
        self._before = (keys + self.key_padding - queries - self.query_padding) // block
        self.segment_ids = None
        position = jnp.arange(keys)[None]
        if segment_ids is not None:
            position = document_positions(segment_ids)
            padded = jnp.pad(segment_ids, ((0, 0), (self.key_padding, 0)), mode="edge")
            self.segment_ids = self._cut(padded)
        position = jnp.pad(position, ((0, 0), (self.key_padding, 0)))
        self.document_positions = self._cut(position)
        bands = interaction.masks
        key_blocks = (keys + self.key_padding) // block
        self.nearest, *self._others = plan_visits(bands, block, key_blocks)
        within = jnp.arange(block)[:, None] - jnp.arange(block)[None]
        # Here, outside all loops: computed inside them, masks would take as long as the rest.
        self._masks = {
            (band, visit.first): bands[band].by_distance(within + visit.first * block)
            for visit in (self.nearest, *self._others)
            for band in visit.bands
            if visit.masked
        }

    def diagonal(self, i: Int[Array, ""]) -> Int[Array, ""]:
        """Return the key block of query block i's own tokens, the last one it sees."""
        return i + self._before if self._diagonals is None else self._diagonals[i]

    def visit_others(
        self, see: Callable[[State, Int[Array, ""], Visit], State], state: State, i: Int[Array, ""]
    ) -> State:
        """Fold see(state, j, visit) over all other key blocks that query block i needs."""
        diagonal = self.diagonal(i)
        for visit in self._others:
            start = 0 if visit.last is None else jnp.maximum(0, diagonal - visit.last)
            end = diagonal - visit.first + 1
            first = self.interaction.masks[visit.bands[0]].first
            if first is not None and self.segment_ids is None:
                # one document, whose first tokens lie in the first blocks
                end = jnp.minimum(end, -(-(first + self.key_padding) // self.block))
            # no iteration if the window begins after these blocks
            state = jax.lax.fori_loop(
                start, end, lambda j, state, visit=visit: see(state, j, visit), state
            )
        return state

    def logits(
        self,
        visit: Visit,
        i: Int[Array, ""],
        j: Int[Array, ""],
        params: Params,
        queries: Sequence[Float[Array, "B K G block H"]],
        keys: Sequence[Float[Array, "B K block H"]],
    ) -> Float[Array, "B K G block block"]:
        """Return the logits of query block i and key block j, −∞ where a key is hidden.

        queries, keys: the two blocks, rotated, for each band of the visit.
        """
        index = self.indices(i, j)
        seen = [self._seen(band, visit, i, j) for band in visit.bands]
        logits = masked_logits(self.interaction.scores, seen, index, params, queries, keys)
        if self.key_padding:
            # Not −∞: a query before the first key sees only padding; its row_sum must not be 0.
            padding = jnp.where(index.key < 0, np.float32(-1e30), np.float32(0))
            logits = logits + padding[None, None, None, None]
        if self.segment_ids is not None:
            of_queries, of_keys = self.segment_ids[self.diagonal(i)], self.segment_ids[j]
            logits = logits + _hiding(of_queries[:, :, None] != of_keys[:, None])[:, None, None]
        return logits

    def _seen(
        self, number: int, visit: Visit, i: Int[Array, ""], j: Int[Array, ""]
    ) -> Bool[Array, "#B 1 1 block block"] | None:
        """Return which keys a band holds in a pair of blocks, or None if it holds all of them."""
        band = self.interaction.masks[number]
        seen = self._masks[number, visit.first][None] if visit.masked else None
        farthest = None if visit.last is None else _greatest_distance(visit.last, self.block)
        if band.needs_document_positions(_least_distance(visit.first, self.block), farthest):
            by_document_position = band.by_document_position(
                self.document_positions[self.diagonal(i)], self.document_positions[j]
            )
            seen = by_document_position if seen is None else seen & by_document_position
        return None if seen is None else seen[:, None, None]

    def indices(self, i: Int[Array, ""], j: Int[Array, ""]) -> Indices:
        """Return the indices in the window of query block i and key block j; below 0 is padding."""
        within = jnp.arange(self.block) - self.key_padding
        return Indices(self.diagonal(i) * self.block + within, j * self.block + within)

    def of_queries(
        self, x: Float[Array, "B T N H"], kv_heads: int
    ) -> Float[Array, "m B K G block H"]:
        """Cut queries, or an array of their shape, into blocks."""
        x = jnp.pad(x, ((0, 0), (self.query_padding, 0), (0, 0), (0, 0)))
        batch, _, heads, width = x.shape
        x = x.reshape(batch, -1, self.block, kv_heads, heads // kv_heads, width)
        return x.transpose(1, 0, 3, 4, 2, 5)

    def of_keys(self, x: Float[Array, "B S K H"]) -> Float[Array, "n B K block H"]:
        """Cut keys or values into blocks."""
        x = jnp.pad(x, ((0, 0), (self.key_padding, 0), (0, 0), (0, 0)))
        x = x.reshape(x.shape[0], -1, self.block, *x.shape[2:])
        return x.transpose(1, 0, 3, 2, 4)

    def merged(self, x: Float[Array, "m B K G block H"], length: int) -> Float[Array, "B T N H"]:
        """Put blocks and heads back together, and return the last `length` tokens."""
        padded = x.shape[0] * self.block
        x = x.transpose(1, 0, 4, 2, 3, 5).reshape(x.shape[1], padded, -1, x.shape[-1])
        return x[:, padded - length :]

    def _cut(self, x: Int[Array, "#B padded"]) -> Int[Array, "_ #B block"]:  # noqa: F821
        return x.reshape(x.shape[0], -1, self.block).swapaxes(0, 1)


def document_positions(segment_ids: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Return every token's position in its own document, from 0."""
    index = jnp.arange(segment_ids.shape[1])[None]
    begins = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)


def masked_logits(
    scores: ScoreFunction,
    seen: Sequence[Bool[Array, "#B 1 1 T S"] | None],
    index: Indices,
    params: Params,
    queries: Sequence[Float[Array, "B K G T H"]],
    keys: Sequence[Float[Array, "B K S H"]],
) -> Logits:
    """Return the logits of some queries and keys, −∞ where a key is hidden.

    seen, queries, keys: of each band. The first band's seen is None if it holds all of the keys.
    """
    first, *others = (
        scores(params, Block(q, k, index)) for q, k in zip(queries, keys, strict=True)
    )
    logits = first if seen[0] is None else first + _hiding(~seen[0])
    for seen_of_band, logits_of_band in zip(seen[1:], others, strict=True):
        assert seen_of_band is not None  # distances decide which of several bands a key is in
        logits = jnp.where(seen_of_band, logits_of_band, logits)
    return logits


def weighted_values(
    interaction: Interaction,
    params: Params,
    weights: Float[Array, "B K G T S"],
    values: Float[Array, "B K S V"],
    index: Indices,
) -> Float[Array, "B K G T V"]:
    """Return weights · values, and what the interaction adds, in float32."""
    out = product(stacked(weights.astype(values.dtype)), values)
    out = unstacked(out, weights.shape[2])
    added = interaction.values
    return out if added is None else out + added(params, weights, index)


def value_gradients(
    interaction: Interaction,
    params: Params,
    probabilities: Float[Array, "B K G T S"],
    values: Float[Array, "B K S V"],
    dout: Float[Array, "B K G T V"],
    index: Indices,
    d_params: Params,
) -> tuple[Float[Array, "B K G T S"], Float[Array, "B K V S"], Params]:
    """Return the gradients of `weighted_values` w.r.t. weights, values (transposed) and params.

    The last one is added to `d_params`.
    """
    rows = stacked(dout)
    d_weights = unstacked(product(rows, values.swapaxes(-1, -2)), dout.shape[2])
    # Width before time: this product is twice as fast that way.
    d_values = product(rows.swapaxes(-1, -2), stacked(probabilities.astype(values.dtype)))
    added = interaction.values
    if added is None:
        return d_weights, d_values, d_params
    _, pull_back = jax.vjp(lambda n, w: added(n, w, index), params, probabilities)
    more_d_params, more_d_weights = pull_back(dout.astype(jnp.float32))
    return d_weights + more_d_weights, d_values, jax.tree.map(jnp.add, d_params, more_d_params)


def sinks_of(params: Params, kv_heads: int) -> Float[Array, "1 K G 1 1"]:
    """Return the logit of each head's sink."""
    return params["sinks"].reshape(1, kv_heads, -1, 1, 1)


def sink_gradient(
    params: Params, lse: Float[Array, "B K G T 1"], delta: Float[Array, "B K G T 1"]
) -> Float[Array, " N"]:
    """Return −Σ_r p_r·delta_r for each head, where p_r = exp(sink − lse_r) is the sink's weight."""
    weights = jnp.exp(sinks_of(params, lse.shape[1]) - lse)
    return -(weights * delta).sum((0, 3, 4)).reshape(-1)


def _hiding(hidden: Bool[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return the additive mask: −∞ where a key is hidden, else 0."""
    return jnp.where(hidden, -jnp.inf, 0.0).astype(jnp.float32)
