"""FLOPs and memory of a model, estimated from its config without tracing anything.

Notation: D model, N heads, K key-value heads, H head dim, F mlp, V vocabulary, L layers, T length.

vocab_size is the tokenizer's in every function; it counts where the model's own is null.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rope_jax.attention.blockwise import BLOCK
from rope_jax.config.model import FloatName, ModelConfig
from rope_jax.model.loss import MOST_LOGITS

_FLOAT = 4
_BATCH_ARRAYS = 5  # tokens, targets, segments, positions, weights: 4 bytes each

# `window_bytes` is at most this many times what XLA allocates.
LARGEST_OVERESTIMATE = 1.7


def flops_per_token(model: ModelConfig, vocab_size: int, seq_len: int) -> float:
    """Model FLOPs of one training token, forward and backward: 6·(matrices) + 6·L·N·H·T.

    The matrices are the projections and the output head; the embedding look-up is free. The
    second term is causal attention, in which a query sees T/2 keys on average; linear attention
    has none. Recomputation (remat) does not count. As in PaLM, arXiv 2204.02311, appendix B,
    except that a query there sees T keys.
    """
    return 3 * sum(_forward_flops(model, vocab_size, seq_len))


def window_flops(model: ModelConfig, vocab_size: int, length: int, scored: int) -> float:
    """FLOPs of a forward pass over one window, whose head computes `scored` of the tokens.

    Sliding windows and position maps count like plain attention.
    """
    unscored = 2.0 * model.hidden_size * (model.vocab_size or vocab_size) * (length - scored)
    return length * sum(_forward_flops(model, vocab_size, length)) - unscored


def repeated_flops_per_token(model: ModelConfig, vocab_size: int, seq_len: int) -> float:
    """FLOPs of one training token that `remat` adds: those of a forward pass, or of a part of it.

    The last product of a layer and the output head are not computed again, but count here.
    """
    matrices, attention = _forward_flops(model, vocab_size, seq_len)
    # The first of attention's two products. The other backends repeat it whatever the policy.
    scores = attention / 2 if model.backend.quadratic_memory else 0.0
    added = {
        "none": 0.0,
        "products": scores,
        "attention": matrices + scores,
        "layer": matrices + attention,
    }
    return added[model.remat]


def _forward_flops(model: ModelConfig, vocab_size: int, seq_len: int) -> tuple[float, float]:
    """FLOPs of one token's forward pass: products with matrices, and attention."""
    heads = model.num_attention_heads * model.heads_width
    kv_heads = model.kv_heads * model.heads_width
    feed_forward = _feed_forward_matrices(model) * model.intermediate_size
    layer = model.hidden_size * (2 * heads + 2 * kv_heads + feed_forward)
    vocabulary = model.vocab_size or vocab_size
    matrices = model.num_hidden_layers * layer + model.hidden_size * vocabulary
    per_pair = heads if model.backend.is_softmax else 0
    attention = model.num_hidden_layers * per_pair * seq_len
    return 2.0 * matrices, 2.0 * attention


def utilization(
    model: ModelConfig, vocab_size: int, seq_len: int, tokens_per_second: float, peak_flops: float
) -> float:
    """Model FLOPs utilization of training (MFU): the model's FLOP/s as a share of the peak's."""
    return tokens_per_second * flops_per_token(model, vocab_size, seq_len) / peak_flops


def parameter_count(model: ModelConfig, vocab_size: int, longest: int = 1) -> int:
    """Number of parameters: projections, norms, embedding, position encoding, an untied head.

    longest: tokens in the longest trained window, whose number the rows of a learned table follow.
    """
    width, inner = model.hidden_size, model.intermediate_size
    heads = model.num_attention_heads * model.heads_width
    kv_heads = model.kv_heads * model.heads_width
    layer = width * (2 * heads + 2 * kv_heads) + _feed_forward_matrices(model) * width * inner
    if model.qkv_bias:
        layer += heads + 2 * kv_heads
    if model.o_bias:
        layer += width
    if model.mlp_bias:
        layer += (_feed_forward_matrices(model) - 1) * inner + width
    normed = width * (4 if model.norm_placement == "both" else 2)
    if model.qk_norm:
        normed += heads + kv_heads if model.qk_norm == "all_heads" else 2 * model.heads_width
    per_number = 2 if model.norm == "layer_norm" else 1  # a scale, and a bias
    layer += per_number * normed
    vocabulary = model.vocab_size or vocab_size
    ends = width * vocabulary * (1 if model.tie_word_embeddings else 2) + per_number * width
    return model.num_hidden_layers * layer + ends + _position_parameters(model, longest)


@dataclass(frozen=True)
class ForwardBytes:
    """Memory of a forward pass over one window, in bytes, by kind of array; an estimate."""

    weights: int
    """All parameters, in the type in which they are kept."""
    activations: int
    """The residual stream, twice, and the results of attention or of the feed-forward, whichever
    are more; without those counted below."""
    cache: int
    """Keys and values of one layer: nothing is generated, so a layer's are dropped after it."""
    scores: int
    """Attention's scores that exist at once."""
    logits: int
    """Output logits that exist at once."""

    @property
    def window(self) -> int:
        """What a window adds to the weights. Scores and logits do not exist at the same time."""
        return self.activations + self.cache + max(self.scores, self.logits)

    @property
    def total(self) -> int:
        """The peak for a single window."""
        return self.weights + self.window


def forward_bytes(
    model: ModelConfig,
    vocab_size: int,
    length: int,
    scored: int,
    longest: int = 1,
    *,
    context: int = 1,
    tensor: int = 1,
) -> ForwardBytes:
    """Memory of a forward pass over one window of `length` tokens, `scored` of them scored.

    An estimate good enough to choose a batch size before compiling. The weights are those of the
    whole model.

    longest: as in `parameter_count`.
    context, tensor: how many devices share the window and the heads. Each has the keys and values
        of the whole window.
    """
    number = _bytes_of(model.dtype)
    heads = model.num_attention_heads * model.heads_width
    kv_heads = model.kv_heads * model.heads_width
    # results of every matrix product, and the input of the last one
    wide = max(3 * heads + 3 * kv_heads, _feed_forward_matrices(model) * model.intermediate_size)
    wide, own = wide // tensor, -(-length // context)
    keys_and_values = number * length * 2 * kv_heads // tensor
    # Measured: XLA allocates several chunks of query rows at once.
    scores = 1.2 * model.num_attention_heads * length * own
    if not model.backend.is_softmax:
        scores = 0.0
    elif not model.backend.quadratic_memory:
        scores = 3 * model.num_attention_heads * min(length, BLOCK) ** 2
    return ForwardBytes(
        weights=_weight_bytes(model, vocab_size, longest),
        activations=number * own * (2 * model.hidden_size + wide) - keys_and_values // context,
        # where devices share the window, they are gathered and then put in order
        cache=keys_and_values * (1 if context == 1 else 2),
        scores=int(_FLOAT * scores) // tensor,
        logits=_FLOAT * _most_logits(model, vocab_size, -(-scored // context), tensor),
    )


def window_bytes(
    model: ModelConfig, vocab_size: int, length: int, scored: int, **split: int
) -> float:
    """Peak bytes of a forward pass over one window, beside the parameters; see `forward_bytes`."""
    return float(forward_bytes(model, vocab_size, length, scored, **split).window)


@dataclass(frozen=True)
class TrainingBytes:
    """Lower estimate of the memory of a training step, in bytes, by kind of array."""

    state: int
    """Parameters and AdamW's two moments."""
    gradients: int
    """One per parameter, all at once: clipping needs the global norm before any is used."""
    batch: int
    """The token arrays of the whole batch."""
    kept: int
    """Results of the layers in one micro-batch's forward pass, kept for its backward pass."""
    logits: int
    """Output logits of one micro-batch that exist at once."""
    accumulates: bool
    """Whether a sum of gradients exists alongside the activations."""
    validation: int
    """What exists at once in a forward pass over the whole batch, which is not split there."""

    @property
    def activations(self) -> int:
        """What the forward pass of one micro-batch leaves for its backward pass."""
        return self.kept + self.logits

    def per_device(self, devices: int, shards: int) -> int:
        """Bytes on each device, with the batch split over all and the parameters over `shards`."""
        peak = max(self.gradients // shards, self.activations // devices)
        if self.accumulates:
            peak += self.gradients // shards
        return self.state // shards + self.batch // devices + peak

    def validation_per_device(self, devices: int, shards: int) -> int:
        """Bytes on each device while a validation batch of the same size is scored."""
        return self.state // shards + (self.batch + self.validation) // devices

    def parameters_per_device(self, shards: int) -> int:
        """Bytes on each device that do not depend on the batch: parameters, moments, gradients."""
        return (self.state + self.gradients) // shards


def training_bytes(
    model: ModelConfig,
    vocab_size: int,
    seq_len: int,
    batch_size: int,
    grad_accumulation: int = 1,
    sliding_windows: Sequence[int | None] = (None,),
) -> TrainingBytes:
    """Return a lower estimate of a training step's memory, which no compiler can undercut.

    It counts the inputs of matrix products that the backward pass reads again, but neither
    elementwise results, which XLA may recompute, nor temporary buffers. Measured, XLA allocates
    1.2 to 3 times as much on CPU; 6 times if layers are unrolled with remat, which XLA then undoes.
    Python integers, so that no size overflows.

    sliding_windows: as in `LanguageModel`: layer i has element i mod their number.
    """
    tokens = batch_size // grad_accumulation * seq_len
    layers = _kept_by_layers(model, seq_len, batch_size // grad_accumulation, sliding_windows)
    logits = _most_logits(model, vocab_size, tokens) * _FLOAT
    parameters = _weight_bytes(model, vocab_size, seq_len)
    all_logits = _most_logits(model, vocab_size, batch_size * seq_len) * _FLOAT
    return TrainingBytes(
        state=3 * parameters,
        gradients=parameters,
        batch=_BATCH_ARRAYS * _FLOAT * batch_size * seq_len,
        kept=layers,
        logits=logits,
        accumulates=grad_accumulation > 1,
        validation=max(_widest(model, batch_size, seq_len), all_logits),
    )


def _kept_by_layers(
    model: ModelConfig, seq_len: int, windows: int, sliding_windows: Sequence[int | None]
) -> int:
    """Bytes that the layers keep for the backward pass over `windows` rows of the batch."""
    number = _bytes_of(model.dtype)
    # The residual stream before attention and before the feed-forward; rotated q and k, v,
    # attention's output; gate and up.
    stream = model.hidden_size * (1 if model.parallel_residual else 2)
    attention = 2 * model.heads_width * (model.num_attention_heads + model.kv_heads)
    feed_forward = (_feed_forward_matrices(model) - 1) * model.intermediate_size
    tokens = windows * seq_len
    layer = tokens * (stream + attention + feed_forward)
    scores = [
        windows * model.num_attention_heads * _kept_scores(model, seq_len, sliding_window)
        for sliding_window in sliding_windows
    ]
    count = model.num_hidden_layers
    if model.remat == "none":
        repeats, rest = divmod(count, len(scores))
        return number * (count * layer + repeats * sum(scores) + sum(scores[:rest]))
    # Scores are computed again under every policy, so those of one layer exist at a time.
    if model.remat == "products":
        return number * (count * layer + max(scores))
    # the input of each layer, and all of the layer being recomputed
    kept = count * tokens * model.hidden_size + layer + max(scores)
    if model.remat == "attention":  # attention's output in the others too
        kept += (count - 1) * tokens * model.num_attention_heads * model.heads_width
    return number * kept


def _widest(model: ModelConfig, windows: int, seq_len: int) -> int:
    """Bytes of the residual stream and of the widest results that exist beside it."""
    number, tokens = _bytes_of(model.dtype), windows * seq_len
    heads = model.num_attention_heads + 2 * model.kv_heads
    attention = number * tokens * model.heads_width * heads
    feed_forward = number * tokens * model.intermediate_size
    return number * tokens * model.hidden_size + max(attention, feed_forward)


def _kept_scores(model: ModelConfig, seq_len: int, sliding_window: int | None) -> int:
    """Number of attention weights, per head and row, that the backward pass reads again."""
    if not model.backend.quadratic_memory:
        return 0  # recomputed block by block
    seen = min(seq_len, sliding_window or seq_len)  # keys per query, past the first ones
    return seen * (seen + 1) // 2 + (seq_len - seen) * seen


def _feed_forward_matrices(model: ModelConfig) -> int:
    """Number of D·F matrices of the feed-forward."""
    return 3 if model.gated_mlp else 2


def _position_parameters(model: ModelConfig, longest: int) -> int:
    return model.position.fitted(longest).parameter_count(model.sizes)


def _weight_bytes(model: ModelConfig, vocab_size: int, longest: int) -> int:
    """Bytes of all parameters; those of the position encoding are always float32."""
    position = _position_parameters(model, longest)
    others = parameter_count(model, vocab_size, longest) - position
    return _bytes_of(model.param_dtype) * others + _FLOAT * position


def _most_logits(model: ModelConfig, vocab_size: int, tokens: int, tensor: int = 1) -> int:
    """Number of output logits that exist at once on a device. tensor: how many share them."""
    vocabulary = (model.vocab_size or vocab_size) // tensor
    return min(tokens * vocabulary, max(MOST_LOGITS, vocabulary))


def _bytes_of(dtype: FloatName) -> int:
    return _FLOAT if dtype == "float32" else 2
