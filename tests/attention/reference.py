"""Attention and its gradients in float64 numpy, and arrays to try it with.

Shapes: B batch, T queries, S keys, N heads, K key-value heads, H head dim, V that of values.
"""

import numpy as np

from rope_jax.positions.mask import BandMask


def inputs(queries, keys, heads=4, kv_heads=2, width=8, value_width=8, batch=2):
    """Return q, k, v, a cotangent of the output, and documents of about 20 tokens."""
    rng = np.random.default_rng(keys)
    shapes = (queries, heads, width), (keys, kv_heads, width), (keys, kv_heads, value_width)
    shapes = *shapes, (queries, heads, value_width)
    q, k, v, dout = (rng.standard_normal((batch, *s)).astype(np.float32) for s in shapes)
    ids = np.cumsum(rng.random((batch, keys)) < 0.05, axis=1).astype(np.int32)
    return q, k, v, dout, ids


def seen_keys(queries, keys, batch=1, ids=None, band=BandMask()):  # noqa: B008
    """Return which keys the last queries see in a band: [B, T, S]."""
    index = np.arange(keys)
    ids = np.zeros((batch, keys), np.int32) if ids is None else np.asarray(ids)
    starts = np.pad(ids[:, 1:] != ids[:, :-1], ((0, 0), (1, 0)))
    position = index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    seen = (ids[:, :, None] == ids[:, None]) & band.by_distance(index[:, None] - index)
    return (seen & band.by_document_position(position, position))[:, -queries:]


def attention(queries, keys, v, dout, seen, bias=0.0, *, sizes=False, sinks=None):
    """Return softmax(scores)·v, and the gradients of its product with `dout`: dq, dk, dv.

    queries, keys, seen: of each band, or of one. bias: added to the logits [B, N, T, S].
    sinks: one more logit of each head [N], without a value; its gradient comes last.
    sizes: instead, the sums of the sizes of their terms, which say how much an error of each factor
        can matter.
    """
    if not isinstance(queries, tuple):
        out, dq, dk, dv = attention((queries,), (keys,), v, dout, (seen,), bias, sizes=sizes)
        return out, dq[0], dk[0], dv
    groups, kv_heads = queries[0].shape[2] // v.shape[2], v.shape[2]
    scale = queries[0].shape[-1] ** -0.5
    queries, keys, v, dout = (
        [np.asarray(x, np.float64) for x in arrays] for arrays in (queries, keys, [v], [dout])
    )
    keys, (v,), (dout,) = [np.repeat(k, groups, axis=2) for k in keys], v, dout
    v = np.repeat(v, groups, axis=2)
    logits = -np.inf
    for q, k, own in zip(queries, keys, seen, strict=True):
        scores = np.einsum("btnh,bsnh->bnts", q, k) * scale + bias
        logits = np.where(own[:, None], scores, logits)
    if sinks is not None:
        column = np.broadcast_to(np.float64(sinks)[:, None, None], (*logits.shape[:3], 1))
        logits = np.concatenate([logits, column], axis=-1)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    if sinks is not None:
        weights, of_sinks = weights[..., :-1], weights[..., -1:]
    sign = -1
    if sizes:
        sign, v, dout = 1, np.abs(v), np.abs(dout)
        queries, keys = ([np.abs(x) for x in arrays] for arrays in (queries, keys))
    out = np.einsum("bnts,bsnv->btnv", weights, v)
    delta = (dout * out).sum(-1).swapaxes(1, 2)[..., None]
    ds = weights * (np.einsum("btnv,bsnv->bnts", dout, v) + sign * delta) * scale

    def of_keys(x):  # the heads of a group share their keys
        return x.reshape(*x.shape[:2], kv_heads, groups, -1).sum(3)

    bands = [ds * own[:, None] for own in seen]
    dq = tuple(np.einsum("bnts,bsnh->btnh", d, k) for d, k in zip(bands, keys, strict=True))
    dk = tuple(
        of_keys(np.einsum("bnts,btnh->bsnh", d, q)) for d, q in zip(bands, queries, strict=True)
    )
    dv = of_keys(np.einsum("bnts,btnv->bsnv", weights, dout))
    more = () if sinks is None else (-(of_sinks * delta).sum((0, 2, 3)),)
    return out, dq, dk, dv, *more
