"""How fast the hardware could be, and how much of that training uses."""

import time

import jax
import jax.numpy as jnp

from rope_jax.schema import ModelConfig

# Dense bfloat16 peak of one device, FLOP/s, by the vendors' data sheets.
_DATASHEET = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
}


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


def peak_flops() -> tuple[float, str]:
    """(FLOP/s of all devices, where the figure comes from).

    From the data sheet where the device is known, else measured: the best of several float32
    matmuls, so that a CPU's utilisation means something too.
    """
    devices = jax.devices()
    for name, flops in _DATASHEET.items():
        if devices[0].device_kind.startswith(name):
            return flops * len(devices), "data sheet, bfloat16"
    size = 1024
    x = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    multiply(x, x).block_until_ready()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        multiply(x, x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds) * len(devices), f"measured, {size}³ float32 matmul"
