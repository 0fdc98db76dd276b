"""A decoder, by default a Llama: Flax NNX modules, used functionally.

Parameters are a pure dict with the names of Hugging Face's Llama; the layers' are stacked on a
leading axis: params["layers"]["self_attn"]["q_proj"]["kernel"] is [L, D, N·H], and its slice i is
the transpose of model.layers.i.self_attn.q_proj.weight. A bias is beside its kernel. Layers with
other blocks are stacks of their own, such as params["dense_layers"]. The parameters of a position
encoding, if it has any, are in params["position"].

Shapes: B batch, S tokens per window, D model, N heads, H head dim, V vocabulary, L layers; tokens:
B·S, the windows laid end to end, of which a device may have a part; scored: how many tokens at the
end of each window are computed, S unless `last` is given; computed: B·scored. An axis marked # may
have size 1.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from rope_jax.blocks.base import Auxiliary, DecoderSpec, Linear, parameter
from rope_jax.blocks.cache import Cache
from rope_jax.blocks.mixer import AttentionSpan, LayerInputs, Mixer
from rope_jax.blocks.norms import norm
from rope_jax.collectives import FSDP, TENSOR, Collectives, Sharding
from rope_jax.model.layers import DecoderLayer, multiplied
from rope_jax.model.loss import Scores, logits_of, token_nll, token_scores
from rope_jax.model.remat import with_remat
from rope_jax.model.spec import LayerKind, ModelSpec
from rope_jax.positions.bands import (
    Rotation,
    RotationsByLayer,
    band_masks,
    of_tokens,
    rotations,
)
from rope_jax.rope import Rotary
from rope_jax.rope.geometry import AnyArray
from rope_jax.rope.layers import shortest_pattern

Params = dict[str, Any]
#: The keys and values of the last layer with each mixer and span.
Kept = dict[tuple[Mixer.Config, AttentionSpan], Cache | None]


Module = TypeVar("Module", bound=nnx.Module)


class Skeleton(Generic[Module]):
    """A module without its parameters, and how a mesh splits these, by path."""

    def __init__(self, new: Callable[[nnx.Rngs], Module]) -> None:
        self._graph, parameters = nnx.split(nnx.eval_shape(lambda: new(nnx.Rngs(0))))
        self.shardings: dict[tuple[str, ...], Sharding] = {
            tuple(map(str, path)): parameter.split
            for path, parameter in nnx.to_flat_state(parameters)
        }

    def with_parameters(self, params: Params) -> Module:
        return nnx.merge(self._graph, params)


class DecoderInputs(NamedTuple):
    """Rows of tokens, the target of each, and how far to rotate at their positions.

    segment_ids: which document each token belongs to; None: each row is one document.
    """

    tokens: Int[Array, "B S"]
    targets: Int[Array, "B S"]
    positions: Int[Array, "#B S"]
    segment_ids: Int[Array, "B S"] | None
    rotary: Rotary


class CachedWindow(NamedTuple):
    """Where the C tokens of a cache are in their texts, which end at its last token.

    positions:   from 0 in each text; 0 in front of it.
    segment_ids: 1 in the text, 0 in front of it.
    rotary:      for the positions.
    """

    positions: Int[Array, "B C"]
    segment_ids: Int[Array, "B C"]
    rotary: Rotary


class EmbeddingAndHead(nnx.Module):
    """The modules outside the layers: token embedding, final norm and output matrix."""

    def __init__(self, spec: ModelSpec, vocab_size: int, rngs: nnx.Rngs) -> None:
        self.spec = spec
        self.embed_tokens = Embedding(spec, vocab_size, spec.hidden_size, rngs)
        self.norm = norm(spec, spec.hidden_size, rngs)
        if spec.head_bias or not spec.tie_word_embeddings:
            self.lm_head = Head(spec, vocab_size, rngs)
        if (width := spec.per_layer_width) is not None:
            self.per_layer = PerLayerEmbedding(spec, vocab_size, width, rngs)

    def embed(self, tokens: Int[Array, " tokens"]) -> Float[Array, "tokens D"]:
        """Return the tokens' embeddings, scaled; Gemma's root is rounded to their dtype."""
        x = self.embed_tokens(tokens)
        scale = self.spec.scale_embeddings
        if scale == "sqrt_hidden_size":
            scale = float(np.asarray(self.spec.hidden_size**0.5, x.dtype))
        return multiplied(x, scale)

    def logit_factors(
        self, hidden: Float[Array, "computed D"]
    ) -> tuple[Float[Array, "computed E"], Float[Array, "E V"]]:
        """Return two matrices whose product is the logits; E is D, or D + 1 with a bias."""
        dtype = self.spec.factor_dtype
        if self.spec.tie_word_embeddings:
            kernel = self.embed_tokens.embedding[...].T
        else:
            kernel = self.lm_head.kernel[...]
        if self.spec.head_bias:
            hidden = jnp.pad(hidden, ((0, 0), (0, 1)), constant_values=1)
            kernel = jnp.concatenate([kernel, self.lm_head.bias[...][None]])
        return hidden.astype(dtype), kernel.astype(dtype)


class PerLayerEmbedding(nnx.Module):
    """What each layer adds of a token, as in Gemma 3n and 4, transformers' modeling_gemma4.py.

    (e + norm(W x/√D))/√2: e is a row of the layer's own table times √P, x the token's embedding.
    """

    def __init__(self, spec: ModelSpec, vocab_size: int, width: int, rngs: nnx.Rngs) -> None:
        self.spec, self.width, total = spec, width, spec.num_hidden_layers * width
        self.embed_tokens = Embedding(spec, vocab_size, total, rngs)
        self.projection = Linear(spec, spec.hidden_size, total, rngs, axes=(FSDP, None))
        self.norm = norm(spec, width, rngs)

    def __call__(
        self, tokens: Int[Array, " tokens"], x: Float[Array, "tokens D"]
    ) -> Float[Array, "L tokens P"]:
        shape = len(tokens), -1, self.width
        table = multiplied(self.embed_tokens(tokens), self.width**0.5).reshape(shape)
        of_x = multiplied(self.projection(x), self.spec.hidden_size**-0.5).reshape(shape)
        return multiplied(table + self.norm(of_x), 2**-0.5).swapaxes(0, 1)


class Embedding(nnx.Module):
    """The vector of each token; devices that share a vocabulary have the rows of some tokens."""

    def __init__(self, spec: DecoderSpec, vocab_size: int, width: int, rngs: nnx.Rngs) -> None:
        self.spec = spec
        shape, sharding = (vocab_size, width), Sharding((TENSOR, FSDP))
        self.embedding = parameter(spec, shape, rngs, sharding=sharding)

    def __call__(self, tokens: Int[Array, " tokens"]) -> Float[Array, "tokens D"]:
        embedding, mesh = self.embedding[...].astype(self.spec.dtype), self.spec.mesh
        if mesh.tensor == 1:
            return jnp.take(embedding, tokens, axis=0)
        size = embedding.shape[0]
        row = tokens - mesh.own_vocabulary(size)
        x = jnp.take(embedding, jnp.clip(row, 0, size - 1), axis=0)
        is_here = (row >= 0) & (row < size)
        return mesh.sum_over_tensor(x * is_here[:, None].astype(x.dtype))


class Head(nnx.Module):
    """The output matrix, unless it is the embedding's, and a bias of the logits."""

    def __init__(self, spec: ModelSpec, vocab_size: int, rngs: nnx.Rngs) -> None:
        if not spec.tie_word_embeddings:
            shape, sharding = (spec.hidden_size, vocab_size), Sharding((FSDP, TENSOR))
            self.kernel = parameter(spec, shape, rngs, sharding=sharding)
        if spec.head_bias:
            sharding = Sharding((TENSOR,))
            self.bias = parameter(spec, (vocab_size,), rngs, initial=0.0, sharding=sharding)


class LanguageModel:
    """The decoder as pure functions of its parameters.

    Its methods take whole windows and return their losses on any mesh, `spec.mesh`, but parameters
    are one device's shards.
    """

    def __init__(self, spec: ModelSpec, vocab_size: int) -> None:
        self.spec, self.vocab_size = spec, vocab_size
        self.encoding, self.mesh = spec.encoding, spec.mesh
        self._outer_skeleton = Skeleton(self._new_outer)
        self.kinds = spec.kinds
        self._layer_skeletons = {
            kind: Skeleton(functools.partial(self._new_layer, kind)) for kind in set(self.kinds)
        }
        #: How a mesh splits each parameter, by its path without the name of its stack.
        self.shardings = dict(self._outer_skeleton.shardings)
        for skeleton in self._layer_skeletons.values():
            self.shardings |= skeleton.shardings
        self._layer = with_remat(self._apply_layer, spec.remat, spec.mesh.fsdp)

    def on(self, mesh: Collectives) -> "LanguageModel":
        """Return the same model as it runs on each device of a mesh."""
        return LanguageModel(replace(self.spec, mesh=mesh), self.vocab_size)

    def _new_outer(self, rngs: nnx.Rngs) -> EmbeddingAndHead:
        return EmbeddingAndHead(self.spec, self.vocab_size, rngs)

    def _new_layer(self, kind: LayerKind, rngs: nnx.Rngs) -> DecoderLayer:
        return DecoderLayer(self.spec, kind, rngs)

    def abstract_params(self) -> Params:
        """Return the shapes and dtypes of the parameters."""
        return jax.eval_shape(lambda: self.init(0))

    def init(self, seed: int) -> Params:
        """Draw fresh parameters, of dtype `param_dtype`; those of the position encoding float32.

        Matrices come from a normal distribution. A norm multiplies by 1, and biases are 0.
        """

        @jax.jit
        def draw(key: Key[Array, ""]) -> Params:
            outer_key, layers_key = jax.random.split(key)
            keys = jax.random.split(layers_key, self.spec.num_hidden_layers)
            layers = {}
            for stack, numbers in self.spec.stacks.items():
                new = functools.partial(self._new_layer, self.kinds[numbers[0]])
                one = functools.partial(_parameters, new)
                layers[stack] = jax.vmap(one)(keys[np.asarray(numbers)])
            # split(key)[0] is fold_in(key, 0), and [1] is fold_in(key, 1)
            position = self.encoding.initial(self.spec.sizes, jax.random.fold_in(key, 2))
            of_position = {"position": position} if position else {}
            return _parameters(self._new_outer, outer_key) | layers | of_position

        return draw(jax.random.key(seed))

    def hidden_states(
        self,
        params: Params,
        tokens: Int[Array, "B S"],
        positions: Int[Array, "#B S"],
        segment_ids: Int[Array, "B S"] | None,
        rotary: Rotary,
        last: int | None = None,
    ) -> tuple[Float[Array, "computed D"], Auxiliary]:
        """Return what the output matrix turns into logits, and the sum of auxiliary losses.

        That is the last layer's output after the final norm, times `logit_multiplier`.

        segment_ids: which document each token belongs to; None: each row is one document.
        last: only for this many tokens at the end of each window; the last layer skips the others.

        Where a mesh splits windows, the tokens are this device's own, and `last` must be None.
        """
        outer, position = self._outer(params), params.get("position", {})
        tokens, own_positions = (self.mesh.own_tokens(x, 1) for x in (tokens, positions))
        inputs = self._layer_inputs(position, rotary, positions, segment_ids, self.mesh.own_tokens)
        x, inputs = self._embedded(outer, position, tokens, own_positions, inputs)
        is_scanned = self.spec.layers == "scanned" and not self.spec.shared_kv_layers
        layers = self._scanned if is_scanned else self._unrolled
        auxiliary = None
        for numbers in self.spec.segments:
            is_last = numbers.stop == self.spec.num_hidden_layers
            x, more = layers(x, params, inputs, numbers, last if is_last else None)
            auxiliary = _plus(auxiliary, more)
        return multiplied(outer.norm(x), self.spec.logit_multiplier), auxiliary

    def empty_caches(self, batch: int, capacity: int, bands: int) -> list[Cache]:
        """Return the caches of the layers that need one, of this device's rows and heads."""
        return [
            kind.mixer.empty_cache(self.spec, batch, capacity, bands)
            for kind in self.kinds
            if not kind.span.shares
        ]

    def next_logits(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        window: CachedWindow,
        caches: list[Cache],
        first: Int[Array, ""],
    ) -> tuple[Float[Array, "B V"], list[Cache]]:
        """Read tokens, from index `first` of the window on; return the logits after the last one.

        params: with a list of layers in the place of each stack, see `with_separate_layers`.
        caches: with what comes before; returned with the tokens.
        """

        def own(x: AnyArray, axis: int) -> AnyArray:
            return jax.lax.dynamic_slice_in_dim(x, first, tokens.shape[1], axis)

        outer, position = self._outer(params), params.get("position", {})
        positions, segment_ids, rotary = window
        inputs = self._layer_inputs(position, rotary, positions, segment_ids, own)
        own_positions = jnp.asarray(own(positions, 1))
        x, inputs = self._embedded(outer, position, tokens, own_positions, inputs)
        inputs = replace(inputs, first=jnp.asarray(first)[None])
        layers = {stack: iter(params[stack]) for stack in self.spec.stacks}
        own_caches = iter(caches)
        read: list[Cache] = []
        kept: Kept = {}
        for number, kind in enumerate(self.kinds):
            gathered = self._gathered(next(layers[kind.stack]))
            layer = self._layer_skeletons[kind].with_parameters(gathered)
            layer.self_attn.cache = None if kind.span.shares else next(own_caches)
            last = 1 if number == len(self.kinds) - 1 else None
            x, _ = layer(x, _sharing(replace(inputs.at(number), last=last), kind, kept))
            kept[kind.mixer, kind.span] = cache = layer.self_attn.cache
            if cache is not None and not kind.span.shares:
                read.append(cache)
        hidden = multiplied(outer.norm(x), self.spec.logit_multiplier)
        logits = logits_of(*outer.logit_factors(hidden), self.spec.logit_softcap)
        return self.mesh.whole_vocabulary(logits), read

    def nll(
        self, params: Params, windows: DecoderInputs, last: int | None = None
    ) -> Float[Array, "B scored"]:
        """Return −ln p(target | the tokens before it), in nats, float32.

        last: only for this many targets at the end of each row, which is less work.
        """
        return self.nll_and_auxiliary(params, windows, last)[0]

    def nll_and_auxiliary(
        self, params: Params, windows: DecoderInputs, last: int | None = None
    ) -> tuple[Float[Array, "B scored"], Auxiliary]:
        """Return `nll`, and what training adds to its mean, or None."""
        hidden, kernel, targets, auxiliary = self._output(params, windows, last)
        softcap = self.spec.logit_softcap
        nll = token_nll(hidden, kernel, targets, softcap=softcap, mesh=self.mesh)
        return self._by_window(nll, windows, last), auxiliary

    def scores(self, params: Params, windows: DecoderInputs, last: int | None = None) -> Scores:
        """Return `nll`, and whether each target is the model's first choice."""
        hidden, kernel, targets, _ = self._output(params, windows, last)
        softcap = self.spec.logit_softcap
        nll, is_top1 = token_scores(hidden, kernel, targets, softcap=softcap, mesh=self.mesh)
        as_float = is_top1.astype(jnp.float32)  # devices exchange no booleans
        nll, as_float = (self._by_window(x, windows, last) for x in (nll, as_float))
        return Scores(nll, as_float > 0)

    def _output(
        self, params: Params, windows: DecoderInputs, last: int | None
    ) -> tuple[Float[Array, "computed E"], Float[Array, "E V"], Int[Array, " computed"], Auxiliary]:
        """Return two factors of the logits, the targets of the same tokens, and auxiliary losses.

        The last tokens of a window that devices share would all be the first one's, so there all
        tokens are computed.
        """
        tokens, targets, positions, segment_ids, rotary = windows
        computed = last if self.mesh.context == 1 else None
        hidden, auxiliary = self.hidden_states(
            params, tokens, positions, segment_ids, rotary, computed
        )
        if computed is not None:
            targets = targets[:, -computed:]
        targets = self.mesh.own_tokens(targets, 1).reshape(-1)
        return *self._outer(params).logit_factors(hidden), targets, auxiliary

    def _by_window(
        self, x: Float[Array, " computed"], windows: DecoderInputs, last: int | None
    ) -> Float[Array, "B scored"]:
        x = self.mesh.all_tokens(x.reshape(windows.tokens.shape[0], -1), 1)
        return x if last is None else x[:, -last:]

    def _outer(self, params: Params) -> EmbeddingAndHead:
        others = {"position", *self.spec.stacks}
        outer = {name: tree for name, tree in params.items() if name not in others}
        return self._outer_skeleton.with_parameters(self._gathered(outer))

    def _embedded(
        self,
        outer: EmbeddingAndHead,
        position: Params,
        tokens: Int[Array, "B S"],
        positions: Int[Array, "#B S"],
        inputs: LayerInputs,
    ) -> tuple[Float[Array, "tokens D"], LayerInputs]:
        """Return the embeddings of tokens, and the inputs with those of each layer."""
        x = outer.embed(flat := tokens.reshape(-1))
        if self.spec.per_layer_width is not None:
            inputs = replace(inputs, embeddings=outer.per_layer(flat, x))
        x = self.encoding.embed(position, x.reshape(*tokens.shape, -1), positions)
        return x.reshape(tokens.size, -1), inputs

    def _layer_inputs(
        self,
        position: Params,
        rotary: Rotary,
        positions: Int[Array, "#B S"],
        segment_ids: Int[Array, "B S"] | None,
        own: Callable[[Any, int], Any],
    ) -> LayerInputs:
        """own(x, axis): the tokens that this program computes, of an array with all of a window."""
        layers = self.spec.num_hidden_layers
        if any(leaf.shape[0] not in (1, layers) for leaf in jax.tree.leaves(rotary)):
            raise ValueError(f"rotary: a leaf's first axis must be 1 or the {layers} layers")
        if not self.spec.backend.is_softmax:
            # m is a temperature of the softmax; here it would only multiply the output by m²
            ones = jnp.ones_like(rotary.frequencies.attention_factor)
            plain = rotary.frequencies._replace(attention_factor=ones)
            rotary = rotary._replace(frequencies=plain)
        pairs, heads = rotary.frequencies.inv_freq.shape[-1], self.spec.num_attention_heads
        masks = band_masks(rotary)
        rotary = of_tokens(rotary, lambda x: own(x, x.ndim - 1))
        # In float32, because bfloat16 rounds position 257 to 256; once, if all layers rotate alike.
        own_positions = jnp.asarray(own(positions, 1))
        by_layer = jax.tree.map(jnp.asarray, RotationsByLayer(rotary, own_positions[None]))
        rotated: tuple[Rotation, ...] | RotationsByLayer = by_layer
        if all(x.shape[0] == 1 for x in jax.tree.leaves((rotary.frequencies, rotary.bands))):
            rotated = rotations(rotary, own_positions)
        query_scale = jnp.asarray(rotary.query_scale)
        if (factors := self.spec.query_factors) != [1.0]:
            query_scale = query_scale * jnp.asarray(factors, query_scale.dtype)[:, None, None]
        return LayerInputs(
            rotations=rotated,
            query_scale=query_scale,
            encoding=self.encoding.layer_params(position, positions, pairs, heads),
            segment_ids=None if segment_ids is None else segment_ids[None],
            bias=None if rotary.bias is None else jnp.asarray(rotary.bias),
            masks=masks,
        )

    def _unrolled(
        self,
        x: Float[Array, "tokens D"],
        params: Params,
        inputs: LayerInputs,
        numbers: range,
        last: int | None = None,
        shift: int | Int[Array, ""] = 0,
    ) -> tuple[Float[Array, "computed D"], Auxiliary]:
        """Apply consecutive layers.

        params: the stacks of exactly these layers. shift: what to add to a layer's number for its
            inputs, where layers repeat a pattern.
        """
        kinds = [self.kinds[number] for number in numbers]
        layers = {stack: _unstacked(params[stack]) for stack in {kind.stack for kind in kinds}}
        auxiliary = None
        kept: Kept = {}
        for number, kind in zip(numbers, kinds, strict=True):
            of_layer = _sharing(inputs.at(number + shift), kind, kept)
            if number == numbers[-1]:
                of_layer = replace(of_layer, last=last)
            x, more, cache = self._layer(x, next(layers[kind.stack]), of_layer, kind)
            kept[kind.mixer, kind.span] = cache
            auxiliary = _plus(auxiliary, more)
        return x, auxiliary

    def _scanned(
        self,
        x: Float[Array, "tokens D"],
        params: Params,
        inputs: LayerInputs,
        numbers: range,
        last: int | None = None,
    ) -> tuple[Float[Array, "computed D"], Auxiliary]:
        """Scan over repeats of the pattern, and unroll the layers within each.

        Layers after the last complete repeat are unrolled too, and a last one of fewer tokens.
        """
        kinds = [self.kinds[number] for number in numbers]
        pattern = shortest_pattern(kinds)
        period, count, computes_all = len(pattern), len(kinds), last is None
        repeats = (count if computes_all else count - 1) // period
        if not repeats:
            return self._unrolled(x, params, inputs, numbers, last)
        sizes = Counter(kind.stack for kind in pattern)

        def by_stack(cut: Callable[[Array, int], Array]) -> Params:
            return {
                stack: jax.tree.map(lambda leaf, size=size: cut(leaf, size), params[stack])
                for stack, size in sizes.items()
            }

        def apply_pattern(
            x: Float[Array, "tokens D"], repeat: tuple[Params | None, Int[Array, ""]]
        ) -> tuple[Float[Array, "tokens D"], Auxiliary]:
            layers, index = repeat
            if layers is None:
                layers = by_stack(
                    lambda leaf, size: jax.lax.dynamic_slice_in_dim(leaf, index * size, size)
                )
            return self._unrolled(x, layers, inputs, numbers[:period], shift=index * period)

        stacked = None
        # Without this, gradients of weights take time quadratic in the number of layers. Nobody
        # asks for them where a layer is left over, and there it would copy nearly all weights.
        if computes_all:
            stacked = by_stack(
                lambda leaf, size: leaf[: repeats * size].reshape(repeats, size, *leaf.shape[1:])
            )
        x, each = jax.lax.scan(apply_pattern, x, (stacked, jnp.arange(repeats)))
        auxiliary = None if each is None else each.sum()
        if repeats * period == count:
            return x, auxiliary
        rest = by_stack(lambda leaf, size: leaf[repeats * size :])
        x, more = self._unrolled(x, rest, inputs, numbers[repeats * period :], last)
        return x, _plus(auxiliary, more)

    def _apply_layer(
        self, x: Float[Array, "tokens D"], params: Params, inputs: LayerInputs, kind: LayerKind
    ) -> tuple[Float[Array, "computed D"], Auxiliary, Cache | None]:
        """Also return the layer's keys and values, if layers share them."""
        layer = self._layer_skeletons[kind].with_parameters(self._gathered(params))
        x, auxiliary = layer(x, inputs)
        return x, auxiliary, layer.self_attn.cache if self.spec.shared_kv_layers else None

    def _gathered(self, params: Params) -> Params:
        """Gather parameters over the devices that share them."""
        return self.mesh.whole(params, self.spec.factor_dtype, self.shardings)


def _sharing(inputs: LayerInputs, kind: LayerKind, kept: Kept) -> LayerInputs:
    """Return the inputs of a layer, with the keys and values of another if it has none."""
    if not kind.span.shares:
        return inputs
    return replace(inputs, shared=kept[kind.mixer, replace(kind.span, shares=False)])


def _plus(total: Auxiliary, more: Auxiliary) -> Auxiliary:
    if total is None or more is None:
        return more if total is None else total
    return total + more


def _unstacked(params: Params) -> Iterator[Params]:
    """Yield the parameters of each layer of a stack."""
    leaves, tree = jax.tree.flatten(params)
    # split, not indexing: its gradient is one concatenation instead of L padded sums
    slices = [jax.lax.split(leaf, [1] * leaf.shape[0]) for leaf in leaves]
    for layer in zip(*slices, strict=True):
        yield jax.tree.unflatten(tree, [leaf[0] for leaf in layer])


def with_separate_layers(params: Params, stacks: Iterable[str], *, donate: bool) -> Params:
    """Return the parameters with each stack of layers as a list of them.

    A program that reads one token copies every layer of a stack, which takes as long as the rest.

    donate: delete each array of a stack when its layers have been copied.
    """

    @jax.jit
    def layers_of(leaf: Array) -> list[Array]:
        return list(leaf)

    def take(leaf: Array) -> list[Array]:
        layers = jax.block_until_ready(layers_of(leaf))
        if donate:
            leaf.delete()
        return layers

    def separated(stack: Params) -> list[Params]:
        leaves, tree = jax.tree.flatten(stack)
        layers = zip(*map(take, leaves), strict=True)
        return [jax.tree.unflatten(tree, layer) for layer in layers]

    return params | {name: separated(params[name]) for name in stacks}


def _parameters(new: Callable[[nnx.Rngs], nnx.Module], key: Key[Array, ""]) -> Params:
    return nnx.to_pure_dict(nnx.state(new(nnx.Rngs(key)), nnx.Param))
