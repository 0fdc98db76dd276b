"""The peer of the training benchmarks: Hugging Face's Llama on PyTorch, with AdamW and clipping."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from workers import Side

# A CPU only to try this out.
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_cpu(
    sizes: dict[str, int],
    windows: int,
    seq_len: int,
    learning_rate: float,
    *,
    rounds_products: bool,
    compiled: bool,
) -> Side:
    """Return a side whose steps return their loss. sizes: of `LlamaConfig`.

    rounds_products: run under autocast to bfloat16. compiled: use torch.compile.
    """
    llama, adamw = _llama(sizes, seq_len, learning_rate, "cpu")
    forward = torch.compile(llama) if compiled else llama
    inputs, targets = _tokens(sizes["vocab_size"], windows, seq_len, "cpu")

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=rounds_products):
            logits = forward(input_ids=inputs).logits
        flat = logits.flatten(0, 1).float()
        loss = torch.nn.functional.cross_entropy(flat, targets.flatten())
        _update(llama, adamw, loss)
        return float(loss.item())

    return Side(step)


def on_gpu(
    sizes: dict[str, int], windows: int, seq_len: int, learning_rate: float, *, remat: bool
) -> Side:
    """Return a side whose compiled steps compute in bfloat16 and return the previous step's loss.

    remat: recompute the activations of every layer.
    """
    torch.set_float32_matmul_precision("high")
    llama, adamw = _llama(sizes, seq_len, learning_rate, _DEVICE)
    inputs, targets = _tokens(sizes["vocab_size"], windows, seq_len, _DEVICE)
    if remat:
        llama.gradient_checkpointing_enable()
    compiled = torch.compile(llama)
    unread = None

    def step() -> float:
        nonlocal unread
        with torch.autocast(_DEVICE, torch.bfloat16):
            logits = compiled(input_ids=inputs).logits
            flat = logits.flatten(0, 1).float()
            loss = torch.nn.functional.cross_entropy(flat, targets.flatten())
        _update(llama, adamw, loss)
        read, unread = unread, loss.detach()
        return float(unread if read is None else read)

    return Side(step, lambda: _facts(windows * seq_len))


def reading(sizes: dict[str, int], lengths: Sequence[int], windows: int) -> Side:
    """Return a side whose steps read windows of each length, one at a time, in bfloat16.

    They score the targets that a sweep of these lengths scores, half of the shortest length.
    """
    llama = _model(sizes, max(lengths), _DEVICE).to(torch.bfloat16).eval()
    scored = lengths[0] // 2
    tokens = [_tokens(sizes["vocab_size"], 1, length, _DEVICE) for length in lengths]

    @torch.inference_mode()
    def step() -> float:
        nll = torch.zeros((), device=_DEVICE)
        for inputs, targets in tokens * windows:
            logits = llama(input_ids=inputs, logits_to_keep=scored).logits[0].float()
            nll += torch.nn.functional.cross_entropy(logits, targets[0, -scored:])
        return float(nll.item())

    return Side(step, lambda: _facts(windows * sum(lengths)), warms=False)


def _facts(tokens: int) -> dict[str, Any]:
    """Return a step's tokens, and the most memory that was in use; 0 on a CPU."""
    return {"tokens": tokens, "used_bytes": torch.cuda.max_memory_allocated()}


def _llama(
    sizes: dict[str, int], seq_len: int, learning_rate: float, device: str
) -> tuple[Any, Any]:
    """Return the model in training, and its optimizer."""
    llama = _model(sizes, seq_len, device).train()
    adamw = torch.optim.AdamW(
        llama.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    return llama, adamw


def _model(sizes: dict[str, int], seq_len: int, device: str) -> Any:
    """Return a model of random weights in float32."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            **sizes,
            max_position_embeddings=seq_len,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            use_cache=False,
        )
    ).to(device)


def _tokens(vocabulary: int, windows: int, seq_len: int, device: str) -> tuple[Any, Any]:
    """Draw the inputs and targets of every step."""
    drawn = np.random.default_rng(0).integers(
        0, min(vocabulary, 256), (windows, seq_len + 1), np.int64
    )
    tokens = torch.from_numpy(drawn).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _update(llama: Any, adamw: Any, loss: Any) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(llama.parameters(), 1.0)
    adamw.step()
    adamw.zero_grad(set_to_none=True)
