"""Self-attention: what all kinds share, `attend`, and `grouped_query`.

Shapes: B batch, S tokens per window, T of them computed, D model, N heads, K key-value heads,
H head dim of queries and keys, R after they are rotated, V that of values, L layers, C distances;
tokens: B·S, the windows laid end to end; computed: B·T, the last T tokens of every window. An axis
marked # may have size 1. Where a mesh splits windows or heads, S, T, N and K are this device's own,
and segment_ids has all tokens of a window.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from pydantic import Field

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.base import Inputs
from rope_jax.attention.linear import LinearAttention, Running
from rope_jax.blocks.base import COLUMN_PARALLEL, ROW_PARALLEL, DecoderSpec, Linear, parameter
from rope_jax.blocks.cache import Cache, KeyValueCache
from rope_jax.blocks.mixer import EVERY_KEY, AttentionSpan, LayerInputs, Mixer
from rope_jax.blocks.norms import Norm, norm, without_weights
from rope_jax.collectives import TENSOR, Sharding
from rope_jax.positions.bands import Rotation
from rope_jax.positions.interaction import Interaction, ScoreFunction, capped, plus_by_distance

Heads = Float[Array, "B T N H"]
QKV = tuple[Heads, Float[Array, "B S K H"] | None, Float[Array, "B S K V"] | None]


class SelfAttention(Mixer):
    """Attention from every token to those before it, by queries, keys and values."""

    class Config(Mixer.Config):
        """Settings of an attention. The docstring is its entry in the documentation."""

        def build(
            self, spec: DecoderSpec, rngs: nnx.Rngs, span: AttentionSpan = EVERY_KEY
        ) -> "SelfAttention":
            raise NotImplementedError

        def head_dim(self, spec: DecoderSpec) -> int:
            """Return H, the width of a head's queries and keys."""
            raise NotImplementedError

        def value_dim(self, spec: DecoderSpec) -> int:
            """Return V, the width of a head's values."""
            return self.head_dim(spec)

        def rotary_dim(self, spec: DecoderSpec) -> int:
            """Return how many dimensions of a head may be rotated, the first ones."""
            return self.head_dim(spec)

        def flops_per_pair(self, spec: DecoderSpec) -> int:
            """Products of width H and V in each head."""
            widths = self.head_dim(spec) + self.value_dim(spec)
            return 2 * spec.num_attention_heads * widths if spec.backend.is_softmax else 0

        def splits_windows(self, spec: DecoderSpec) -> bool:
            return spec.backend.splits_windows

        def cached_heads(self, spec: DecoderSpec) -> tuple[int, int, int | None]:
            """Return K, R and V of a cache, V None if values are parts of keys."""
            width = spec.encoding.rotated_width(self.head_dim(spec))
            return spec.kv_heads, width, self.value_dim(spec)

        def empty_cache(self, spec: DecoderSpec, batch: int, capacity: int, bands: int) -> Cache:
            heads, width, value_width = self.cached_heads(spec)
            if not spec.backend.is_softmax:
                sums = jnp.zeros((batch, heads, width, self.value_dim(spec)), jnp.float32)
                phi_k = jnp.zeros((batch, heads, self.head_dim(spec)), jnp.float32)
                return Running(sums, phi_k, jnp.full(batch, -1, jnp.int32))
            shape = batch, capacity, heads
            keys = tuple(jnp.zeros((*shape, width), spec.dtype) for _ in range(bands))
            if value_width is None:
                return KeyValueCache(keys, None)
            return KeyValueCache(keys, jnp.zeros((*shape, value_width), spec.dtype))

    def __init__(self, spec: DecoderSpec, span: AttentionSpan) -> None:
        super().__init__(spec)
        self.span = span

    def _build_outputs(self, value_dim: int, rngs: nnx.Rngs) -> None:
        """Make the parameters after the softmax, and in it."""
        spec, heads = self.spec, self.spec.num_attention_heads
        width = heads * value_dim
        self.o_proj = Linear(
            spec, width, spec.hidden_size, rngs, axes=ROW_PARALLEL, bias=spec.o_bias
        )
        self.sinks: nnx.Param[Array] | None = nnx.data(None)
        if spec.attention_sinks:
            self.sinks = parameter(spec, (heads,), rngs, sharding=Sharding((TENSOR,)))

    def __call__(
        self, x: Float[Array, "tokens D"], inputs: LayerInputs
    ) -> Float[Array, "computed D"]:
        """Attend from the computed tokens to all tokens of their windows."""
        q, k, v = self.heads(x, inputs)
        sinks = None if self.sinks is None else self.sinks[...]
        cache = inputs.shared if self.span.shares else self.cache
        norms = self.rotated_norms
        out, read = attend(self.spec, self.span, inputs, q, k, v, sinks, cache, norms)
        out = self.attended_values(out, inputs.computed(x))
        self.cache = read
        return self.o_proj(out.reshape(out.shape[0] * out.shape[1], -1))

    def heads(self, x: Float[Array, "tokens D"], inputs: LayerInputs) -> QKV:
        """Return queries, keys and values, not rotated; no keys and values if it shares others."""
        raise NotImplementedError

    @property
    def rotated_norms(self) -> tuple[Norm, Norm] | None:
        """The norms of queries and of keys once they are rotated."""
        return None

    def attended_values(
        self, out: Float[Array, "B T N _"], x: Float[Array, "computed D"]
    ) -> Float[Array, "B T N V"]:
        """Return what the output projection reads. x: the layer's input."""
        return out


class GroupedQueryAttention(SelfAttention):
    """Attention whose query heads share fewer heads of keys and values."""

    class Config(SelfAttention.Config):
        """Heads of queries share heads of keys; QK-norm before the rotation, or after it."""

        type: Literal["grouped_query"] = "grouped_query"
        output_gate: bool = Field(
            False, description="multiply heads' outputs by sigmoid of a product with the token"
        )
        width: int | None = Field(None, gt=0, multiple_of=2, description="H; null: head_dim")
        kv_heads: int | None = Field(None, gt=0, description="K; null: num_key_value_heads")
        value_norm: bool = Field(False, description="norm of values, without weights (Gemma 4)")
        values_are_keys: bool = Field(False, description="before their norm and rotation (Gemma 4)")

        def build(
            self, spec: DecoderSpec, rngs: nnx.Rngs, span: AttentionSpan = EVERY_KEY
        ) -> "GroupedQueryAttention":
            return GroupedQueryAttention(self, spec, span, rngs)

        def head_dim(self, spec: DecoderSpec) -> int:
            return self.width or spec.head_dim

        def cached_heads(self, spec: DecoderSpec) -> tuple[int, int, int | None]:
            return self.kv_heads or spec.kv_heads, *super().cached_heads(spec)[1:]

        def tensor_sizes(self, spec: DecoderSpec) -> dict[str, int]:
            return {"kv_heads": self.kv_heads} if self.kv_heads else {}

    def __init__(
        self, config: Config, spec: DecoderSpec, span: AttentionSpan, rngs: nnx.Rngs
    ) -> None:
        super().__init__(spec, span)
        self.config = config
        d, width = spec.hidden_size, config.head_dim(spec)
        self.width = width
        heads, kv_heads = spec.num_attention_heads, config.kv_heads or spec.kv_heads

        def projection(outputs: int, bias: bool = spec.qkv_bias) -> Linear:
            return Linear(spec, d, outputs * width, rngs, axes=COLUMN_PARALLEL, bias=bias)

        self.q_proj = projection(heads)
        if not span.shares:
            self.k_proj = projection(kv_heads)
            if not config.values_are_keys:
                self.v_proj = projection(kv_heads)
        self.gate_proj: Linear | None = nnx.data(None)
        if config.output_gate:
            self.gate_proj = projection(heads, bias=False)
        self._build_outputs(width, rngs)
        if spec.qk_norm == "by_head":
            self.q_norms = norm(spec, width, rngs, heads=heads)
            if not span.shares:
                self.k_norms = norm(spec, width, rngs, heads=kv_heads)
        elif spec.qk_norm in (True, "all_heads", "after_rotation"):
            together = spec.qk_norm == "all_heads"
            self.q_norm = norm(spec, heads * width if together else width, rngs)
            if not span.shares:
                self.k_norm = norm(spec, kv_heads * width if together else width, rngs)

    @property
    def rotated_norms(self) -> tuple[Norm, Norm] | None:
        if self.spec.qk_norm != "after_rotation":
            return None
        return self.q_norm, self.q_norm if self.span.shares else self.k_norm

    def heads(self, x: Float[Array, "tokens D"], inputs: LayerInputs) -> QKV:
        batch = x.shape[0] // inputs.length
        q = self._normed("q", self.q_proj(inputs.computed(x)), batch)
        if self.span.shares:
            return q, None, None
        k = self.k_proj(x)
        v = self._by_head(k if self.config.values_are_keys else self.v_proj(x), batch)
        if self.config.value_norm:
            v = without_weights(v, self.spec.rms_norm_eps)
        return q, self._normed("k", k, batch), v

    def _normed(self, name: str, y: Float[Array, "_ width"], batch: int) -> Heads:
        """Return the heads of q or k, normalized."""
        if self.spec.qk_norm == "all_heads":
            y = getattr(self, f"{name}_norm")(y)
        heads = self._by_head(y, batch)
        if self.spec.qk_norm is True:
            heads = getattr(self, f"{name}_norm")(heads)
        elif self.spec.qk_norm == "by_head":
            heads = getattr(self, f"{name}_norms")(heads)
        return heads

    def _by_head(self, y: Float[Array, "_ width"], batch: int) -> Heads:
        if (c := self.spec.clip_qkv) is not None:
            y = jnp.clip(y, -c, c)
        return y.reshape(batch, -1, y.shape[1] // self.width, self.width)

    def attended_values(
        self, out: Float[Array, "B T N _"], x: Float[Array, "computed D"]
    ) -> Float[Array, "B T N V"]:
        if self.gate_proj is None:
            return out
        gate = jax.nn.sigmoid(self.gate_proj(x).astype(jnp.float32)).reshape(out.shape)
        return (out.astype(jnp.float32) * gate).astype(out.dtype)


def attend(
    spec: DecoderSpec,
    span: AttentionSpan,
    inputs: LayerInputs,
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"] | None,
    v: Float[Array, "B S K V"] | None,
    sinks: Float[Array, " N"] | None = None,
    cache: Cache | None = None,
    norms: tuple[Norm, Norm] | None = None,
) -> tuple[Float[Array, "B T N V"], Cache]:
    """Rotate queries and keys (linear attention: their features), and attend to visible keys.

    The queries are the last T of the S tokens. Where devices share each window, q, k, v and inputs
    are of the S tokens of this device, except segment_ids; keys and values of the other devices are
    gathered.

    inputs: without an axis of layers. sinks: one more logit of every query, without a value.
    k, v: None: those in the cache are all. cache: the keys and values before these S. Returned:
        that with these. norms: of rotated queries and keys.
    """
    backend, mesh, rotations = spec.backend, spec.mesh, inputs.rotations_here()
    rotate_keys = functools.partial(_rotated, spec, span, inputs, norms=norms)
    rotate_queries = functools.partial(rotate_keys, is_query=True)
    if isinstance(backend, LinearAttention):
        (rotation,) = rotations
        of_queries = functools.partial(rotate_queries, rotation=rotation)
        of_keys = functools.partial(rotate_keys, rotation=rotation)
        assert cache is None or isinstance(cache, Running)
        assert k is not None
        assert v is not None
        segment_ids = inputs.documents(k.shape[1])
        return backend.attend_features(q, k, v, of_queries, of_keys, segment_ids, cache)
    queries = tuple(
        _scaled(rotate_queries(q, rotation), rotation, inputs).astype(q.dtype)
        for rotation in rotations
    )
    assert cache is None or isinstance(cache, KeyValueCache)
    if k is not None and v is not None:
        keys = tuple(mesh.all_tokens(rotate_keys(k, rotation), 1) for rotation in rotations)
        v = mesh.all_tokens(v, 1)
        if cache is None or inputs.first is None:
            cache = KeyValueCache(keys, v)
        else:
            cache = cache.with_tokens(keys, v, inputs.first)
    assert cache is not None
    values, first = cache.values_of(q.shape[-1] if v is None else v.shape[-1]), None
    if inputs.first is not None:
        first = inputs.first + jnp.int32(inputs.length - q.shape[1])
        backend = backend if backend.reads_caches else BACKENDS["xla"]
    interaction, params = _interaction(spec, span, inputs, sinks)
    bands = Inputs(queries, cache.keys, values, inputs.segment_ids, mesh.part, params, first)
    rounds = spec.low_precision and backend.has_precision
    if spec.product_dtype is not None and not rounds:
        bands = bands.cast(spec.product_dtype)
    out = backend.attend_bands(interaction, bands, low_precision=rounds)
    return out.astype(values.dtype), cache


def _rotated(
    spec: DecoderSpec,
    span: AttentionSpan,
    inputs: LayerInputs,
    x: Float[Array, "B T N H"],
    rotation: Rotation,
    *,
    is_query: bool = False,
    norms: tuple[Norm, Norm] | None,
) -> Float[Array, "B T N R"]:
    """Rotate keys, or queries, and normalize them after it where the model does so."""
    rotate, cos, sin = spec.encoding.rotate_keys, rotation.key_cos, rotation.key_sin
    if is_query:
        rotate, cos, sin = spec.encoding.rotate_queries, rotation.query_cos, rotation.query_sin
    length, pairs = x.shape[1], spec.encoding.rotary_dim(x.shape[-1]) // 2
    if pairs < cos.shape[-1]:  # other layers have wider heads, and more frequencies than these
        cos, sin = cos[..., :pairs], sin[..., :pairs]
    rotated = rotate(inputs.encoding, x, cos[:, -length:], sin[:, -length:], spec.layout)
    if spec.qk_norm == "rotated" and span.rotates:
        return without_weights(rotated, spec.rms_norm_eps)
    return rotated if norms is None else norms[0 if is_query else 1](rotated)


def _scaled(
    q: Float[Array, "B T N R"], rotation: Rotation, inputs: LayerInputs
) -> Float[Array, "B T N R"]:
    """Multiply queries by their scale. In float32: bfloat16 would round the scale by up to 0.4%."""
    length = q.shape[1]
    scale = inputs.query_scale[:, -length:, None]
    if rotation.query_scale is not None:
        scale = scale * rotation.query_scale[:, -length:]
    return q.astype(jnp.float32) * scale[..., None]


def _interaction(
    spec: DecoderSpec, span: AttentionSpan, inputs: LayerInputs, sinks: Float[Array, " N"] | None
) -> tuple[Interaction, dict[str, Array]]:
    """Return how queries and keys meet, and the arrays that this takes."""
    scores: ScoreFunction = spec.encoding.scores
    params = inputs.encoding
    if inputs.bias is not None:  # only beside plain dot products, see `check_map`
        scores, params = plus_by_distance, {"by_distance": inputs.bias}
    if spec.attention_softcap is not None:
        scores = capped(scores)
        params = params | {"softcap": jnp.float32(spec.attention_softcap)}
    if sinks is not None:
        params = params | {"sinks": sinks.astype(jnp.float32)}
    interaction = Interaction(inputs.masks, scores, spec.encoding.values, sinks is not None)
    return interaction.within(span.sliding_window, span.attention_chunk), params
