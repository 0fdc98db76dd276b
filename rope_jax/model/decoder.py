"""A Llama-style decoder: Flax NNX modules, used functionally.

Parameters are a pure dict whose names are Hugging Face Llama's, the layers' stacked on a leading
axis: params["layers"]["self_attn"]["q_proj"]["kernel"] is [L, D, N·H], and its slice i is the
transpose of model.layers.i.self_attn.q_proj.weight. Biases: none.

Shapes: B batch, T length, D model, N heads, K key-value heads, H head dim, F mlp, V vocabulary,
L layers, d rotary dimension.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from rope_jax.attention import BACKENDS
from rope_jax.config.model import ModelConfig
from rope_jax.config.training import Config
from rope_jax.model.loss import token_nll
from rope_jax.rope import Rotary, cos_sin, rotate
from rope_jax.rope.geometry import Layout

Params = dict[str, Any]


def _linear(config: ModelConfig, inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    init = nnx.initializers.normal(config.initializer_range)
    return nnx.Linear(
        inputs, outputs, use_bias=False, dtype=config.dtype, kernel_init=init, rngs=rngs
    )


class RMSNorm(nnx.RMSNorm):
    """x / √(mean x² + ε) · scale over the last axis, in float32, returned in x's dtype."""

    def __init__(self, config: ModelConfig, width: int, rngs: nnx.Rngs) -> None:
        super().__init__(width, epsilon=config.rms_norm_eps, dtype=jnp.float32, rngs=rngs)

    def __call__(
        self, x: Float[Array, "*batch width"], mask: Array | None = None
    ) -> Float[Array, "*batch width"]:
        return super().__call__(x, mask).astype(x.dtype)


class SelfAttention(nnx.Module):
    """Grouped-query attention; queries and keys are rotated, after QK-norm where there is one."""

    def __init__(self, config: ModelConfig, layout: Layout, rngs: nnx.Rngs) -> None:
        self.config, self.layout = config, layout
        width, heads, kv_heads = config.heads_width, config.num_attention_heads, config.kv_heads
        self.q_proj = _linear(config, config.hidden_size, heads * width, rngs)
        self.k_proj = _linear(config, config.hidden_size, kv_heads * width, rngs)
        self.v_proj = _linear(config, config.hidden_size, kv_heads * width, rngs)
        self.o_proj = _linear(config, heads * width, config.hidden_size, rngs)
        if config.qk_norm:
            self.q_norm = RMSNorm(config, width, rngs)
            self.k_norm = RMSNorm(config, width, rngs)

    def __call__(
        self,
        x: Float[Array, "B*S D"],
        cos: Float[Array, "B|1 S d/2"],
        sin: Float[Array, "B|1 S d/2"],
        query_scale: Float[Array, "B|1 S|1"],
        segment_ids: Int[Array, "B S"] | None,
        sliding_window: int | None,
        last: int | None,
    ) -> Float[Array, "B*T D"]:
        """What the last T = `last` of the S tokens take from all of them; None: T = S."""
        length, width = cos.shape[1], self.config.heads_width
        projections = self.q_proj(_last(x, length, last)), self.k_proj(x), self.v_proj(x)
        batch = x.shape[0] // length
        q, k, v = (y.reshape(batch, -1, y.shape[1] // width, width) for y in projections)
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q = rotate(q, cos[:, -q.shape[1] :], sin[:, -q.shape[1] :], self.layout)
        k = rotate(k, cos, sin, self.layout)
        # in float32: in bfloat16 the scale itself would be off by up to 0.4%
        query_scale = query_scale[:, -q.shape[1] :, None, None]
        q = (q.astype(jnp.float32) * query_scale).astype(q.dtype)
        out = BACKENDS[self.config.attention](q, k, v, segment_ids, sliding_window)
        return self.o_proj(out.reshape(out.shape[0] * out.shape[1], -1))


def _last(x: Float[Array, "B*S D"], length: int, last: int | None) -> Float[Array, "B*T D"]:
    """Of each window's S = `length` tokens, the last T."""
    if last is None:
        return x
    return x.reshape(-1, length, x.shape[1])[:, -last:].reshape(-1, x.shape[1])


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        # Gate and up apart: fused into one matmul they are slower on CPU.
        self.gate_proj = _linear(config, config.hidden_size, config.intermediate_size, rngs)
        self.up_proj = _linear(config, config.hidden_size, config.intermediate_size, rngs)
        self.down_proj = _linear(config, config.intermediate_size, config.hidden_size, rngs)

    def __call__(self, x: Float[Array, "B*T D"]) -> Float[Array, "B*T D"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nnx.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, layout: Layout, rngs: nnx.Rngs) -> None:
        self.input_layernorm = RMSNorm(config, config.hidden_size, rngs)
        self.self_attn = SelfAttention(config, layout, rngs)
        self.post_attention_layernorm = RMSNorm(config, config.hidden_size, rngs)
        self.mlp = MLP(config, rngs)

    def __call__(
        self,
        x: Float[Array, "B*S D"],
        cos: Float[Array, "B|1 S d/2"],
        sin: Float[Array, "B|1 S d/2"],
        query_scale: Float[Array, "B|1 S|1"],
        segment_ids: Int[Array, "B S"] | None,
        sliding_window: int | None,
        last: int | None,
    ) -> Float[Array, "B*T D"]:
        """Of the last T = `last` of the S tokens; None: T = S."""
        attended = self.self_attn(
            self.input_layernorm(x), cos, sin, query_scale, segment_ids, sliding_window, last
        )
        x = _last(x, cos.shape[1], last) + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Ends(nnx.Module):
    """What stands before the first layer and after the last."""

    def __init__(self, config: ModelConfig, vocab_size: int, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.normal(config.initializer_range)
        self.config = config
        self.embed_tokens = nnx.Embed(
            vocab_size, config.hidden_size, dtype=config.dtype, embedding_init=init, rngs=rngs
        )
        self.norm = RMSNorm(config, config.hidden_size, rngs)
        if not config.tie_word_embeddings:
            self.lm_head = _linear(config, config.hidden_size, vocab_size, rngs)

    def output_kernel(self) -> Float[Array, "D V"]:
        """What the normed hidden states are multiplied with for logits."""
        if self.config.tie_word_embeddings:
            return self.embed_tokens.embedding[...].astype(self.config.dtype).T
        return self.lm_head.kernel[...].astype(self.config.dtype)


class LanguageModel:
    """The decoder as pure functions of its parameters.

    sliding_windows: how many keys the queries of a layer see, None: all before them; layer i has
    number i mod their count. It is part of the program, as rotary frequencies are not.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        layout: Layout = "half",
        sliding_windows: Sequence[int | None] = (None,),
    ) -> None:
        self.config, self.vocab_size = config, vocab_size
        self.sliding_windows = tuple(sliding_windows)
        self._ends = lambda rngs: Ends(config, vocab_size, rngs)
        self._layer = lambda rngs: DecoderLayer(config, layout, rngs)
        self._ends_graph = nnx.graphdef(nnx.eval_shape(lambda: self._ends(nnx.Rngs(0))))
        self._layer_graph = nnx.graphdef(nnx.eval_shape(lambda: self._layer(nnx.Rngs(0))))

    def init(self, seed: int) -> Params:
        """Fresh parameters, float32: normal matrices, norms of 1."""

        def pure(make: Any, key: Array) -> Params:
            return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

        @jax.jit
        def draw(key: Array) -> Params:
            ends_key, layers_key = jax.random.split(key)
            keys = jax.random.split(layers_key, self.config.num_hidden_layers)
            layers = jax.vmap(lambda k: pure(self._layer, k))(keys)
            return pure(self._ends, ends_key) | {"layers": layers}

        return draw(jax.random.key(seed))

    def hidden_states(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B|1 T"],
        segment_ids: Int[Array, "B T"] | None,
        rotary: Rotary,
        last: int | None = None,
    ) -> Float[Array, "B*T D"]:
        """The last layer's output, normed. segment_ids None: each row is one document.

        last: only for so many tokens at the end of each window; the last layer then does no more.
        """
        layers = self.config.num_hidden_layers
        for leaf in jax.tree.leaves(rotary):
            if leaf.shape[0] not in (1, layers):
                raise ValueError(
                    f"rotary: a leaf has shape {leaf.shape}; its first axis must be 1 or the "
                    f"{layers} layers"
                )
        ends = nnx.merge(self._ends_graph, {k: v for k, v in params.items() if k != "layers"})
        x = ends.embed_tokens(tokens.reshape(-1))
        # float32, before any layer: a bfloat16 position is wrong from 257 on
        cos, sin = cos_sin(rotary.frequencies, positions)
        rotation = cos, sin, rotary.query_scale
        x = self._apply_layers(params["layers"], x, rotation, segment_ids, last)
        return ends.norm(x)

    def nll(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        targets: Int[Array, "B T"],
        positions: Int[Array, "B|1 T"],
        segment_ids: Int[Array, "B T"] | None,
        rotary: Rotary,
        last: int | None = None,
    ) -> Float[Array, "B T|last"]:
        """−ln p(target | the tokens up to its place), nats, float32.

        last: of the last so many targets of each row alone, for less work.
        """
        hidden = self.hidden_states(params, tokens, positions, segment_ids, rotary, last)
        ends = nnx.merge(self._ends_graph, {k: v for k, v in params.items() if k != "layers"})
        if last is not None:
            targets = targets[:, -last:]
        nll = token_nll(hidden, ends.output_kernel(), targets.reshape(-1))
        return nll.reshape(targets.shape)

    def _apply_layers(
        self,
        layers: Params,
        x: Float[Array, "B*T D"],
        rotation: tuple[Array, ...],
        segment_ids: Int[Array, "B T"] | None,
        last: int | None,
    ) -> Float[Array, "B*T D"]:
        count = self.config.num_hidden_layers
        period = len(self.sliding_windows)

        def layer(
            window: int | None, last: int | None
        ) -> Callable[[Array, Params, tuple[Array, ...]], Array]:
            def apply(x: Array, params: Params, rotation: tuple[Array, ...]) -> Array:
                module = nnx.merge(self._layer_graph, params)
                return module(x, *rotation, segment_ids, window, last)

            return jax.checkpoint(apply) if self.config.remat else apply

        kinds = [layer(window, None) for window in self.sliding_windows]
        final = layer(self.sliding_windows[(count - 1) % period], last)

        def rotation_of(index: Any) -> tuple[Array, ...]:
            return tuple(r[0] if r.shape[0] == 1 else r[index] for r in rotation)

        def unrolled(x: Array, layers: Params, first: Any, size: int, to_the_end: bool) -> Array:
            """Layers first to first + size, whose kinds begin the pattern."""
            # split, not indexing: its gradient is one concatenation instead of L padded sums
            slices = jax.tree.map(lambda leaf: jax.lax.split(leaf, [1] * size), layers)
            for index in range(size):
                params = jax.tree.map(lambda _, parts, i=index: parts[i][0], layers, slices)
                kind = final if to_the_end and index == size - 1 else kinds[index % period]
                x = kind(x, params, rotation_of(first + index))
            return x

        if self.config.layers == "unrolled":
            return unrolled(x, layers, 0, count, True)
        # Scan over the repeats of the pattern; within one, layers differ and are unrolled. So is
        # the last layer, where it does less than the others.
        scanned = count if last is None else count - 1
        whole = scanned - scanned % period
        repeats = jax.tree.map(
            lambda leaf: leaf[:whole].reshape(-1, period, *leaf.shape[1:]), layers
        )

        def step(x: Array, xs: Any) -> tuple[Array, None]:
            params, first = xs
            return unrolled(x, params, first, period, False), None

        x = jax.lax.scan(step, x, (repeats, jnp.arange(0, whole, period)))[0]
        if whole == count:
            return x
        rest = jax.tree.map(lambda leaf: leaf[whole:], layers)
        return unrolled(x, rest, whole, count - whole, True)


def language_model(config: Config, vocab_size: int) -> LanguageModel:
    """The model of a run."""
    return LanguageModel(config.model, vocab_size, config.rope.layout, config.sliding_windows)
