"""Our own kernel for CPUs, with memory linear in the length. See kernels/attention.cc.

Shapes: B batch, T query length, S key length, N heads, K key-value heads, H head dim of queries and
keys, V that of values, C distances in a table.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from rope_jax.attention import blockwise
from rope_jax.attention.base import Backend, Inputs, attended
from rope_jax.attention.blocks import Blocks, document_positions
from rope_jax.attention.blockwise import Blockwise
from rope_jax.attention.dense import Xla
from rope_jax.kernels.loading import call_kernel, floats, load_kernels
from rope_jax.positions.encodings.fire import FIREEncoding
from rope_jax.positions.interaction import (
    Interaction,
    decayed,
    decaying_product,
    dot_product,
    plus_by_distance,
    plus_key_by_distance,
    value_by_distance,
)

# The backward pass works on one key-value head and one chunk of keys at a time. These numbers
# decide how many there are. They do not depend on the processor, so neither does the result.
_WANTED_TASKS, _LEAST_KEYS = 16, 512
_AHEAD = 128  # as in kernels.h
_SPAN = 4096  # queries whose logits decay by distance
_LOG2_E = np.float32(np.log2(np.e))
_NEAR = 128  # tokens in a block of near keys


class Cpu(Backend):
    """Our own kernel in C++, called once for each band.

    The tokens of a document must be consecutive. The kernel knows dot products, which may decay by
    distance, biases by distance, FIRE's bias, and vectors that all far keys and values share;
    other scores, and added values, are left to `Blockwise`.
    Products accumulate in float32, whatever the dtypes of queries, keys and v. The backward pass
    keeps queries, keys, v, the output and one number per query and head, and recomputes the
    probabilities.
    """

    name: ClassVar[str] = "cpu"
    summary: ClassVar[str] = "kernel for CPU"
    platforms: ClassVar[tuple[str, ...]] = ("cpu",)
    # The kernel rounds what it copies. Rounded by XLA, a step took 3 to 14% longer.
    has_precision: ClassVar[bool] = True
    reads_caches: ClassVar[bool] = True

    def obstacle(self, platform: str, dtype: str, head_dim: int) -> str | None:
        if reason := super().obstacle(platform, dtype, head_dim):
            return reason
        if load_kernels() is None:
            return "was not compiled; install rope-jax again where there is a C++ compiler"
        return None

    def attend_bands(
        self, interaction: Interaction, inputs: Inputs, low_precision: bool = False
    ) -> Float[Array, "B T N V"]:
        if load_kernels() is None:
            raise RuntimeError("attention cpu: the kernels were not compiled")
        dtype, bias = inputs.v.dtype, _NO_BIAS
        unbiased = interaction._replace(scores=dot_product)
        is_whole = inputs.part is None and inputs.first is None
        if is_whole and unbiased.is_dot_product and interaction.scores in _BIASES:
            bias, interaction = _BIASES[interaction.scores](inputs), unbiased
        if is_whole and interaction.scores is decaying_product and unbiased.is_dot_product:
            spans = _decayed(inputs)
            outs = [self.attend_bands(unbiased, span, low_precision) for span in spans]
            return jnp.concatenate(outs, axis=1)
        if is_whole and (bands := _near_and_far(interaction, inputs)) is not None:
            return _attend_near_and_far(low_precision, *bands, inputs).astype(dtype)
        if not interaction.is_dot_product:
            narrow = inputs.cast(jnp.bfloat16) if low_precision else inputs
            other = Blockwise() if inputs.first is None else Xla()
            return other.attend_bands(interaction, narrow).astype(dtype)
        wide = inputs.cast(jnp.float32)._replace(segment_ids=None, part=None, params={}, first=None)
        seen = _seen(interaction, inputs)
        if inputs.first is not None and inputs.queries[0].shape[1] == 1:
            return _attend_one(low_precision, wide, seen).astype(dtype)
        return _attention(low_precision, wide, bias, seen).astype(dtype)


class _Bias(NamedTuple):
    """What the kernel adds to logits, see kernels.h: by_key, or with knots the lines, in units of
    ln 2."""

    by_key: Float[Array | np.ndarray, "#B N _"]
    stretch: Float[Array | np.ndarray, "B T"]
    knots: Float[Array | np.ndarray, " bends"]
    lines: Float[Array | np.ndarray, "N _ 2"]


_NO_CURVE = np.zeros((0, 0), np.float32), np.zeros(0, np.float32), np.zeros((0, 0, 2), np.float32)
_NO_BIAS = _Bias(np.zeros((1, 0, 0), np.float32), *_NO_CURVE)


def _bias_by_distance(inputs: Inputs) -> _Bias:
    table, keys = inputs.params["by_distance"], inputs.v.shape[1]
    table = table.reshape(-1, *table.shape[-2:]).astype(jnp.float32)
    return _Bias(_by_key(table * _LOG2_E, keys), *_NO_CURVE)


def _bias_of_fire(inputs: Inputs) -> _Bias:
    keys, (batch, queries, heads, _) = inputs.v.shape[1], inputs.queries[0].shape
    psi, stretch, knots, lines = FIREEncoding.as_curve(inputs.params, keys)
    psi = jnp.broadcast_to(psi, (1, heads, keys))
    stretch = jnp.broadcast_to(stretch[:, keys - queries :], (batch, queries))
    return _Bias(_by_key(psi, keys), stretch, knots, lines * _LOG2_E)


_BIASES = {plus_by_distance: _bias_by_distance, FIREEncoding.scores: _bias_of_fire}


def _by_key(table: Float[Array, "#B N C"], keys: int) -> Float[Array, "#B N _"]:
    """Return a table by distance as the kernel reads it: the entries of consecutive keys.

    The last distance of the table stands for all beyond, and the first for keys after the query.
    """
    table = table[..., :keys]
    padding = _AHEAD, keys - table.shape[-1]
    return jnp.pad(table, ((0, 0), (0, 0), padding), mode="edge")[..., ::-1]


def _decayed(inputs: Inputs) -> Iterator[Inputs]:
    """Yield spans of queries and the keys up to their end, with the factors of `decaying_product`.

    r is a span's middle, so those of xPos stay below 3.5^(span/2/scale_base), at most 3e17.
    """
    length, decay = inputs.v.shape[1], inputs.params["decay"]
    before = length - inputs.queries[0].shape[1]
    for begin in range(before, length, _SPAN):
        end = min(begin + _SPAN, length)
        index = jnp.arange(end) - (begin + end) // 2
        own = slice(begin - before, end - before)
        yield Inputs(
            tuple(decayed(q[:, own], decay, index[begin:], axis=1) for q in inputs.queries),
            tuple(decayed(k[:, :end], decay, -index, axis=1) for k in inputs.keys),
            inputs.v[:, :end],
            None if inputs.segment_ids is None else inputs.segment_ids[:, :end],
        )


# The first and the last key that each query sees in a band: it sees all between them. In a band
# without any, the first one comes after the last one.
_Interval = tuple[Int[Array, "B T"], Int[Array, "B T"]]


def _seen(interaction: Interaction, inputs: Inputs) -> tuple[_Interval, ...]:
    (batch, keys), queries = inputs.v.shape[:2], inputs.queries[0].shape[1]
    segment_ids, part, index = inputs.segment_ids, inputs.part, jnp.arange(keys)[None]
    position = index if segment_ids is None else document_positions(segment_ids)

    def of_queries(x: Int[Array, "#B S"]) -> Int[Array, "B T"]:
        if inputs.first is not None:
            x = jax.lax.dynamic_slice_in_dim(x, inputs.first, queries, axis=1)
        else:
            x = x[:, -queries:] if part is None else part.own(x, 1)
        return jnp.broadcast_to(x, (batch, queries)).astype(jnp.int32)

    # each band sees an interval of positions, and a document's tokens are consecutive keys
    intervals = [band.interval(position) for band in interaction.masks]
    return tuple(
        (of_queries(index - position + first), of_queries(index - position + last))
        for first, last in intervals
    )


def _attend_one(
    low_precision: bool, inputs: Inputs, seen: tuple[_Interval, ...]
) -> Float32[Array, "B 1 N V"]:
    """Attention of one query: its heads that share keys are queries, so that keys are read once."""
    heads, kv_heads = inputs.queries[0].shape[2], inputs.v.shape[2]

    def as_queries(q: Float[Array, "B 1 N H"]) -> Float[Array, "B G K H"]:
        return q.reshape(q.shape[0], kv_heads, -1, q.shape[-1]).swapaxes(1, 2)

    queries = tuple(map(as_queries, inputs.queries))
    shared = [tuple(jnp.repeat(x, heads // kv_heads, 1) for x in interval) for interval in seen]
    out = _attention(low_precision, inputs._replace(queries=queries), _NO_BIAS, tuple(shared))
    return out.swapaxes(1, 2).reshape(out.shape[0], 1, heads, -1)


class _Saved(NamedTuple):
    inputs: Inputs
    bias: _Bias
    seen: tuple[_Interval, ...]
    out: Float32[Array, "B T N V"]
    lse: Float32[Array, "B N T"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    low_precision: bool,
    inputs: Inputs,
    bias: _Bias,
    seen: tuple[_Interval, ...],
) -> Float32[Array, "B T N V"]:
    return _forward(low_precision, inputs, bias, seen)[0]


def _forward(
    low_precision: bool,
    inputs: Inputs,
    bias: _Bias,
    seen: tuple[_Interval, ...],
) -> tuple[Float32[Array, "B T N V"], _Saved]:
    """Band b's own softmax has the output out_b and lse_b = log2 Σ_s 2^logit_s.

    Over all bands, lse = log2 Σ_b 2^lse_b, and band b's output counts 2^lse_b / Σ_b 2^lse_b.
    """
    queries, keys, v, *_ = inputs
    batch, length, heads, _ = queries[0].shape
    results = floats(batch, length, heads, v.shape[-1]), floats(batch, heads, length)
    attributes = {"scale": _scale(queries[0]), "rounded": low_precision}
    bands = [
        call_kernel("attention_forward", results, q, k, v, *interval, *bias, **attributes)
        for q, k, interval in zip(queries, keys, seen, strict=True)
    ]
    out, lse = attended(_merged(bands))
    return out, _Saved(inputs, bias, seen, out, lse)


def _merged(bands: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the output and lse over all bands."""
    if len(bands) == 1:
        return bands[0]
    outs, lses = zip(*bands, strict=True)
    largest = functools.reduce(jnp.maximum, lses)
    # not 2^(lse_b - lse): where logits are large, the rounding of lse would change their sum
    shares = [jnp.exp2(lse - largest) for lse in lses]
    total = sum(shares[1:], shares[0])
    parts = [
        out * (share / total).swapaxes(1, 2)[..., None]
        for out, share in zip(outs, shares, strict=True)
    ]
    return sum(parts[1:], parts[0]), largest + jnp.log2(total)


def _backward(
    low_precision: bool, saved: _Saved, dout: Float32[Array, "B T N V"]
) -> tuple[Inputs, _Bias, None]:
    """The kernel takes probabilities from lse, so with that of all bands each band's are right."""
    (queries, keys, v, *_), bias, seen, out, lse = saved
    chunks = -(-_WANTED_TASKS // max(1, v.shape[0] * v.shape[2]))
    chunks = max(1, min(chunks, -(-v.shape[1] // _LEAST_KEYS)))
    attributes = {"scale": _scale(queries[0]), "rounded": low_precision, "chunks": np.int64(chunks)}
    heads, length = (queries[0].shape[2], queries[0].shape[1]) if bias.knots.size else (0, 0)
    parts = chunks, v.shape[0]
    of_bias = (
        floats(*parts, *bias.by_key.shape[1:]),
        floats(*parts, heads, length),
        floats(*parts, *bias.lines.shape),
    )
    dqs, dks, dvs, dbiases = [], [], [], []
    for q, k, interval in zip(queries, keys, seen, strict=True):
        results = floats(*q.shape), floats(*k.shape), floats(*v.shape), *of_bias
        given = q, k, v, *interval, *bias, out, lse, dout
        dq, dk, dv, *dbias = call_kernel("attention_backward", results, *given, **attributes)
        dqs.append(dq)
        dks.append(dk)
        dvs.append(dv)
        dbiases.append(dbias)
    by_key, stretch, lines = (
        np.float32(np.log(2)) * sum(parts[1:], parts[0]).sum(0)
        for parts in zip(*dbiases, strict=True)
    )
    if bias.by_key.shape[0] == 1:
        by_key = by_key.sum(0, keepdims=True)
    dbias = _Bias(
        by_key, stretch.sum(1).reshape(bias.stretch.shape), jnp.zeros_like(bias.knots), lines.sum(0)
    )
    dv = sum(dvs[1:], dvs[0])
    return Inputs(tuple(dqs), tuple(dks), dv, None, None, {}), dbias, None


_attention.defvjp(_forward, _backward)


def _near_and_far(
    interaction: Interaction, inputs: Inputs
) -> tuple[Interaction, Interaction] | None:
    """Split keys at the distance from which on they share a vector, if some may be beyond it."""
    (band, *_), keys = interaction.masks, inputs.v.shape[1]
    if interaction != Interaction((band,), plus_key_by_distance, value_by_distance):
        return None
    beyond = len(inputs.params["keys"]) - 1
    if not 0 < beyond < min(keys, band.beyond or keys):
        return None
    near = interaction._replace(masks=(dataclasses.replace(band, beyond=beyond),))
    return near, Interaction((dataclasses.replace(band, nearest=beyond),))


def _attend_near_and_far(
    low_precision: bool, near: Interaction, far: Interaction, inputs: Inputs
) -> Float32[Array, "B T N V"]:
    """The near keys in blocks; the others, with the vector of each table that they share, here."""
    key, value = (
        inputs.params[name][None, None, -1:].astype(jnp.float32) for name in ("keys", "values")
    )
    wide = inputs.cast(jnp.float32)
    (k,) = wide.keys
    moved = Inputs(wide.queries, (k + key,), wide.v + value)
    narrow = inputs.cast(jnp.bfloat16) if low_precision else wide
    return _near_beside_far(low_precision, near, narrow, moved, _seen(far, inputs))


class _SavedParts(NamedTuple):
    near: blockwise.Saved
    far: _Saved


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _near_beside_far(
    low_precision: bool,
    near: Interaction,
    near_inputs: Inputs,
    far_inputs: Inputs,
    seen: tuple[_Interval, ...],
) -> Float32[Array, "B T N V"]:
    return _forward_parts(low_precision, near, near_inputs, far_inputs, seen)[0]


def _forward_parts(
    low_precision: bool,
    near: Interaction,
    near_inputs: Inputs,
    far_inputs: Inputs,
    seen: tuple[_Interval, ...],
) -> tuple[Float32[Array, "B T N V"], _SavedParts]:
    """One softmax over both, as over the bands of `_forward`."""
    far_out, far_saved = _forward(low_precision, far_inputs, _NO_BIAS, seen)
    near_out, near_saved = blockwise.forward(near, _NEAR, near_inputs)
    blocks = Blocks(near, _NEAR, near_inputs)
    lse = blocks.merged(near_saved.lse, near_out.shape[1])[..., 0].swapaxes(1, 2) * _LOG2_E
    parts = [(near_out.astype(jnp.float32), lse), (far_out, far_saved.lse)]
    out, lse = attended(_merged(parts))
    of_blocks = blocks.of_queries(lse.swapaxes(1, 2)[..., None] / _LOG2_E, far_inputs.v.shape[2])
    near_saved = near_saved._replace(out=out, lse=of_blocks)
    return out, _SavedParts(near_saved, far_saved._replace(out=out, lse=lse))


def _backward_parts(
    low_precision: bool, near: Interaction, saved: _SavedParts, dout: Float32[Array, "B T N V"]
) -> tuple[Inputs, Inputs, None]:
    of_far, *_ = _backward(low_precision, saved.far, dout)
    # as the kernel rounds it: else the derivatives by a query's logits would not add up to zero
    narrow = dout.astype(jnp.bfloat16) if low_precision else dout
    (of_near,) = blockwise.backward(near, _NEAR, saved.near, narrow)
    return of_near, of_far, None


_near_beside_far.defvjp(_forward_parts, _backward_parts)


def _scale(q: Float[Array, "B T N H"]) -> np.float32:
    return np.float32(q.shape[-1] ** -0.5)
