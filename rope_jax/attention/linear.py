"""Linear attention with rotary position embeddings: time and memory are linear in the length.

RoFormer, arXiv 2104.09864, §3.3, eq. 19. The feature map φ and the running sums are those of
Katharopoulos et al., arXiv 2006.16236.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, G = N/K, H head dim,
R dimensions of a rotated φ, V dimensions of a value, chunk: tokens per chunk, m chunks of queries,
X any number of tokens.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from rope_jax.attention.base import Backend, attended

# Shorter chunks compute fewer scores (chunk per query); longer ones make larger products and keep
# fewer running sums for the backward pass. Of 16 to 512, 32 was the fastest on a CPU, or within 7%
# of the fastest; see benchmarks/linear.py. An accelerator may prefer longer ones.
CHUNK = 32


class LinearAttention(Backend):
    """Causal linear attention with the rotation in the numerator only (RoFormer, eq. 19).

        out_m = Σ_{n≤m} ⟨rotate(φ(q_m)), rotate(φ(k_n))⟩ v_n / Σ_{n≤m} ⟨φ(q_m), φ(k_n)⟩
        φ(x) = elu(x) + 1, which is x + 1 for x > 0 and eˣ otherwise

    The weights of the values are not probabilities: a rotated numerator may be negative. The
    denominator is not rotated, which keeps it positive, and float32 holds its square, which the
    gradient needs, unless q_m + k_n is below −40 in every dimension.

    chunk: the most tokens per chunk. The queries are cut into as few equal chunks as possible.

    Everything is computed in float32, and the result has v's dtype. A loop over chunks carries the
    sums of rotate(φ(k_n)) v_nᵀ and of φ(k_n) over the current document. The backward pass keeps
    these sums once per chunk, K·(R·V + H) floats, and recomputes the rest of a chunk.
    """

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "another model, without softmax"
    is_softmax: ClassVar[bool] = False
    splits_windows: ClassVar[bool] = False  # sums over earlier tokens, one after the other

    def __init__(self, chunk: int = CHUNK) -> None:
        self.chunk = chunk

    def attend_features(
        self,
        q: Float[Array, "B T N H"],
        k: Float[Array, "B S K H"],
        v: Float[Array, "B S K V"],
        rotate_queries: Callable[[Float32[Array, "B T N H"]], Float32[Array, "B T N R"]],
        rotate_keys: Callable[[Float32[Array, "B S K H"]], Float32[Array, "B S K R"]],
        segment_ids: Int[Array, "B S"] | None = None,
        read: "Running | None" = None,
    ) -> tuple[Float[Array, "B T N V"], "Running"]:
        """Attend by features of q and k, which are rotated, and not q and k themselves.

        rotate_queries, rotate_keys: linear maps that rotate features by the positions of the last T
            and of all S tokens. Arrays that they close over, such as cos and sin, get gradients. If
            those include a factor m, the output is multiplied by m².
        read: the sums over the tokens before these S, if any. Returned: those with these S.
        """
        batch, queries, heads, _ = q.shape
        length, kv_heads = k.shape[1:3]
        if segment_ids is None:
            segment_ids = jnp.zeros((batch, length), jnp.int32)
        keys = _Keys(k, rotate_keys(_phi(k)), v, segment_ids)

        # Of the keys before the first query, only its document's are ever seen: a single sum.
        before = length - queries
        first = keys.documents[:, before]
        earlier = _Keys(*(x[:, :before] for x in keys))
        running = _sums(earlier, first, read)

        chunks = -(-queries // self.chunk)
        grouped = batch, queries, kv_heads, heads // kv_heads, -1
        every_query = (cut(x.reshape(grouped), chunks) for x in (q, rotate_queries(_phi(q))))
        per_chunk = *every_query, _Keys(*(cut(x[:, before:], chunks) for x in keys))
        # Without the checkpoint, the backward pass would keep the scores of every chunk.
        add_chunk = jax.checkpoint(_add_chunk, prevent_cse=False)
        _, out = jax.lax.scan(add_chunk, running, per_chunk)
        out = out.swapaxes(0, 1).reshape(batch, -1, heads, v.shape[-1])
        every = _sums(keys, keys.documents[:, -1], read)
        return attended(out[:, :queries].astype(v.dtype)), every


class _Keys(NamedTuple):
    """Keys and values of a span of tokens; rotated is rotate(φ(k))."""

    k: Float[Array, "B X K H"]
    rotated: Float32[Array, "B X K R"]
    v: Float[Array, "B X K V"]
    documents: Int[Array, "B X"]


class Running(NamedTuple):
    """Sums of rotate(φ(k_n)) v_nᵀ and of φ(k_n) over the tokens of one document so far.

    document: its segment id.
    """

    rotated_kv: Float32[Array, "B K R V"]
    phi_k: Float32[Array, "B K H"]
    document: Int[Array, " B"]


def _add_chunk(
    running: Running,
    chunk: tuple[Float[Array, "B chunk K G H"], Float32[Array, "B chunk K G R"], _Keys],
) -> tuple[Running, Float32[Array, "B chunk K G V"]]:
    """Add the chunk (q, rotate(φ(q)), keys and values of the same tokens); return its output."""
    q, rotated_q, keys = chunk
    causal = np.tri(keys.k.shape[1], dtype=bool)[None]
    seen = causal & (keys.documents[:, :, None] == keys.documents[:, None])
    continued = keys.documents == running.document[:, None]

    scores = jnp.einsum("bqkgr,bskr->bkgqs", rotated_q, keys.rotated)
    weights = jnp.where(seen[:, None, None], scores, 0)
    within = jnp.einsum("bkgqs,bskv->bqkgv", weights, keys.v.astype(jnp.float32))
    carried = jnp.einsum("bqkgr,bkrv->bqkgv", rotated_q, running.rotated_kv)
    numerator = within + jnp.where(continued[:, :, None, None, None], carried, 0)

    seen_phi_k = jnp.einsum("bqs,bskh->bqkh", seen.astype(jnp.float32), _phi(keys.k))
    seen_phi_k += jnp.where(continued[:, :, None, None], running.phi_k[:, None], 0)
    denominator = jnp.einsum("bqkgh,bqkh->bqkg", _phi(q), seen_phi_k)

    running = _sums(keys, keys.documents[:, -1], running)
    return running, numerator / denominator[..., None]


def _sums(keys: _Keys, document: Int[Array, " B"], earlier: Running | None) -> Running:
    """Return the sums over the tokens of one document, and over earlier ones if it is theirs."""
    included = (keys.documents == document[:, None])[:, :, None, None]
    rotated = jnp.where(included, keys.rotated, 0)
    rotated_kv = jnp.einsum("bskr,bskv->bkrv", rotated, keys.v.astype(jnp.float32))
    phi_k = jnp.where(included, _phi(keys.k), 0).sum(1)
    if earlier is not None:
        same = document == earlier.document
        rotated_kv += jnp.where(same[:, None, None, None], earlier.rotated_kv, 0)
        phi_k += jnp.where(same[:, None, None], earlier.phi_k, 0)
    return Running(rotated_kv, phi_k, document)


def _phi(x: Float[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """Return elu(x) + 1 in float32.

    Adding 1 to elu(x) would lose the digits of small values, and give 0 for x below −17.
    """
    x = x.astype(jnp.float32)
    return jnp.maximum(x, 0) + jnp.exp(jnp.minimum(x, 0))


def cut(x: Array, chunks: int) -> Array:
    """Cut [B, T, ...] into [m, B, chunk, ...], padded with zeros at the end.

    Causality hides the padding from the queries, and φ(0) = 1 keeps its own denominators positive.
    """
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % chunks), *((0, 0),) * (x.ndim - 2)))
    return x.reshape(x.shape[0], chunks, -1, *x.shape[2:]).swapaxes(0, 1)
