"""How much memory a forward pass takes, about: enough to choose a batch size before compiling."""

from rope_jax.attention.blockwise import BLOCK
from rope_jax.config.model import ModelConfig
from rope_jax.model.loss import MOST_LOGITS

_FLOAT = 4


def forward_bytes(model: ModelConfig, vocab_size: int, length: int, scored: int) -> float:
    """Bytes that live at once while one window of `length` tokens is read and `scored` are scored.

    Per token the residual stream, twice, and what the wider of attention and feed-forward holds;
    beside it the larger of attention's scores and one chunk of logits. Parameters are not counted.
    """
    heads = model.num_attention_heads * model.heads_width
    kv_heads = model.kv_heads * model.heads_width
    wide = max(3 * heads + 3 * kv_heads, 3 * model.intermediate_size)
    tokens = length * (2 * model.hidden_size + wide)
    # What XLA was seen to allocate: its chunks of rows are not done one after the other.
    scores = 1.2 * model.num_attention_heads * length**2
    if model.attention != "xla":
        scores = 3 * model.num_attention_heads * min(length, BLOCK) ** 2
    logits = min(scored * vocab_size, max(MOST_LOGITS, vocab_size))
    return _FLOAT * (tokens + max(scores, logits))


def flops_per_token(model: ModelConfig, vocab_size: int, seq_len: int) -> float:
    """Model FLOPs of one training token, forward and backward: 6·(matrices) + 6·L·N·H·T.

    The matrices are the projections and the output head; the embedding look-up is free. The
    second term is causal attention, half of T keys a query on average. Recomputation (remat)
    does not count. After PaLM, arXiv 2204.02311, appendix B, but for the causal half.
    """
    heads = model.num_attention_heads * model.heads_width
    kv_heads = model.kv_heads * model.heads_width
    layer = model.hidden_size * (2 * heads + 2 * kv_heads + 3 * model.intermediate_size)
    matrices = model.num_hidden_layers * layer + model.hidden_size * vocab_size
    return 6.0 * matrices + 6.0 * model.num_hidden_layers * heads * seq_len
