"""FLOPs of a model, from its config without tracing anything.

Notation: N heads, H head dim of queries and keys, V that of values, L layers, S tokens per window.

vocab_size is the model's own, in every function.
"""

from rope_jax.model.spec import ModelSpec


def flops_per_token(model: ModelSpec, vocab_size: int, seq_len: int) -> float:
    """Model FLOPs of one training token, forward and backward.

    6·(matrices) + 3·L·N·(H + V)·S.

    The matrices are the projections and the output head; the embedding look-up is free. The
    second term is causal attention, in which a query sees S/2 keys on average; linear attention
    has none. Recomputation (remat) does not count. As in PaLM, arXiv 2204.02311, appendix B,
    except that a query there sees S keys.
    """
    return 3 * sum(_forward_flops(model, vocab_size, seq_len))


def window_flops(model: ModelSpec, vocab_size: int, length: int, scored: int) -> float:
    """FLOPs of a forward pass over one window, whose head computes `scored` of the tokens.

    Sliding windows and position maps count like plain attention.
    """
    unscored = 2.0 * model.hidden_size * vocab_size * (length - scored)
    return length * sum(_forward_flops(model, vocab_size, length)) - unscored


def _forward_flops(model: ModelSpec, vocab_size: int, seq_len: int) -> tuple[float, float]:
    """FLOPs of one token's forward pass: products with matrices, and attention."""
    kinds = model.kinds
    layers = sum(
        kind.mixer.flops_per_token(model, kind.span) + kind.feed_forward.flops_per_token(model)
        for kind in kinds
    )
    layers += 6 * model.hidden_size * (model.per_layer_width or 0) * len(kinds)
    head = 2 * model.hidden_size * vocab_size
    pairs = sum(kind.mixer.flops_per_pair(model) for kind in kinds)
    return float(layers + head), pairs * seq_len / 2
