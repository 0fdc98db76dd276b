"""The gated delta rule: attention with a memory of fixed size, in time linear in the length.

Gated DeltaNet, Yang et al., arXiv 2412.06464; by chunks as in arXiv 2406.06484.

Shapes: B batch, S tokens, K heads of queries and keys, N of values, G = N/K, H head dim of queries
and keys, V that of values, chunk: tokens per chunk, m chunks; C channels of a convolution, W its
width, P = W − 1, T = P + S.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from rope_jax.attention.base import attended
from rope_jax.attention.linear import cut

# Longer chunks read and write S less often, and compute more products of pairs of tokens. Of 16 to
# 128, 32 was the fastest on a CPU for heads of 128 numbers; for those of 32, 16 took half the time.
CHUNK = 32
_EPSILON = 1e-6  # of the root of q and k, in the authors' code
Memory = Float32[Array, "B K G H V"]


class DeltaState(NamedTuple):
    """What a gated delta net keeps of the tokens that it has read.

    memory: S of each head. inputs, documents: of the convolution for the last tokens.
    """

    memory: Memory
    inputs: Float[Array, "B P C"]
    documents: Int[Array, "B P"]


def gated_delta_rule(
    q: Float[Array, "B S K H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S N V"],
    log_decay: Float32[Array, "B S N"],
    beta: Float32[Array, "B S N"],
    segment_ids: Int[Array, "B S"],
    memory: Memory,
    document: Int[Array, " B"],
    chunk: int = CHUNK,
) -> tuple[Float[Array, "B S N V"], Memory]:
    """Read each token into the memory S of its document, and look up its query there.

        S_t = R + k_t β_t (v_t − Rᵀ k_t)ᵀ  where R = S_{t−1} exp(log_decay_t),  o_t = S_tᵀ q_t

    and q and k are divided by √(Σ x² + 10⁻⁶), and q by √H. Value head n reads key head n // G. S
    is 0 before a document.

    log_decay: at most 0. memory, document: S before these tokens, and its segment id; returned is S
    after them. chunk: the most tokens per chunk. They are cut into as few equal ones as possible.

    Everything is computed in float32, and the result has v's dtype. Within a chunk, what the tokens
    write solves a triangular system. The backward pass keeps S once per chunk, N·H·V floats, and
    recomputes the rest.
    """
    batch, length, heads, _ = k.shape
    chunks = -(-length // chunk)
    # the last document goes on over the padding, which neither decays nor writes
    documents = jnp.pad(segment_ids, ((0, 0), (0, -length % chunks)), mode="edge")
    of_values = (x.reshape(batch, length, heads, -1, *x.shape[3:]) for x in (v, log_decay, beta))
    tokens = tuple(cut(x, chunks) for x in (q, k, *of_values, documents))
    # Without the checkpoint, the backward pass would keep the products of all pairs in a chunk.
    add_chunk = jax.checkpoint(_add_chunk, prevent_cse=False)
    (memory, _), out = jax.lax.scan(add_chunk, (memory, document), tokens)
    out = out.swapaxes(0, 1).reshape(batch, -1, *v.shape[2:])
    return attended(out[:, :length].astype(v.dtype)), memory


def _add_chunk(
    read: tuple[Memory, Int[Array, " B"]], tokens: tuple[Array, ...]
) -> tuple[tuple[Memory, Int[Array, " B"]], Float32[Array, "B chunk K G V"]]:
    """Read the tokens of a chunk, and look up their queries."""
    (memory, document), (q, k, v, *rates, documents) = read, tokens
    length, width = k.shape[1], k.shape[3]
    q, k, v = _normalized(q) * width**-0.5, _normalized(k), v.astype(jnp.float32)
    log_decay, beta = (jnp.moveaxis(x, 1, -1) for x in rates)

    # The decay of token s at token t. Each pair has a sum of its own: differences of sums over the
    # chunk lose digits where the decay is strong.
    is_earlier = np.tri(length, k=-1, dtype=bool)[None, None, None]
    logs = jnp.cumsum(jnp.where(is_earlier, log_decay[..., None], 0), axis=-2)
    seen = np.tri(length, dtype=bool)[None] & (documents[:, :, None] == documents[:, None])
    decay = jnp.where(seen[:, None, None], jnp.exp(logs), 0)
    continued = (documents == document[:, None])[:, None, None]
    carried = jnp.where(continued, jnp.exp(jnp.cumsum(log_decay, axis=-1)), 0)[..., None]

    # written = β (v − what S, and earlier tokens of the chunk, have at k)
    remembered = carried * jnp.einsum("btkh,bkghv->bkgtv", k, memory)
    written = beta[..., None] * (jnp.moveaxis(v, 1, 3) - remembered)
    if length > 1:
        overlap = jnp.einsum("btkh,bskh->bkts", k, k)[:, :, None]
        written = _inverse(jnp.where(is_earlier, beta[..., None] * overlap * decay, 0)) @ written
    weights = jnp.einsum("btkh,bskh->bkts", q, k)[:, :, None] * decay
    out = jnp.einsum("bkgts,bkgsv->btkgv", weights, written)
    out += jnp.moveaxis(carried * jnp.einsum("btkh,bkghv->bkgtv", q, memory), 3, 1)
    left = jnp.einsum("bskh,bkgs,bkgsv->bkghv", k, decay[..., -1, :], written)
    return (carried[..., -1:, :] * memory + left, documents[:, -1]), out


def _inverse(lower: Float32[Array, "B K G chunk chunk"]) -> Float32[Array, "B K G chunk chunk"]:
    """Return (1 + lower)⁻¹, where `lower` has numbers below its diagonal only.

    From the inverses A and B of two neighbouring blocks of the diagonal follows that of both and
    C below them: [[A, 0], [−B C A, B]]. Blocks begin with one token, and double. XLA's own
    triangular solver may wait for itself forever on a CPU.
    """
    length = lower.shape[-1]
    inverse = jnp.broadcast_to(jnp.eye(length, dtype=jnp.float32), lower.shape)
    for level in range((length - 1).bit_length()):
        block = np.arange(length)[:, None] >> level
        below = (block % 2 == 1) & (block == block.T + 1)
        inverse -= inverse @ jnp.where(below[None, None, None], lower, 0) @ inverse
    return inverse


@jax.checkpoint  # or the backward pass would keep every shifted copy of x
def short_convolution(
    x: Float[Array, "B T C"], documents: Int[Array, "B T"], kernel: Float[Array, "W C"]
) -> Float[Array, "B S C"]:
    """Return silu(Σ_w kernel[w] x_{t−W+1+w}) over tokens of t's document, in float32, as x's dtype.

    x, documents: inputs and segment ids, beginning W − 1 tokens before the first result.
    """
    width, length = kernel.shape[0], x.shape[1] - kernel.shape[0] + 1
    shifted = [
        jnp.where((documents[:, w : w + length] == documents[:, width - 1 :])[..., None],
                  x[:, w : w + length], 0) * kernel[w].astype(jnp.float32)[None, None]
        for w in range(width)
    ]  # fmt: skip
    return jax.nn.silu(sum(shifted[1:], shifted[0])).astype(x.dtype)


def _normalized(x: Float[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """x / √(Σ x² + ε) over the last axis."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + _EPSILON)
