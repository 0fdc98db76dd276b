"""Time each kernel for CPUs against what XLA does without it, in turns.

    python benchmarks/cpu_kernels.py

One layer's attention with heads of 32 (whole matrices up to 512 tokens, blocks above), the product
of a projection, the gradient of its weights, a gated feed-forward, and RMSNorm, all in float32 with
4,096 tokens. Attention, feed-forward and RMSNorm are forward and backward. Prints the median
milliseconds of both sides, and the median and quartiles of the rounds' ratios.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.attention.backends import BACKENDS
from rope_jax.devices.malloc import keep_freed_memory
from rope_jax.kernels.gated import gated_feed_forward
from rope_jax.kernels.loading import load_kernels
from rope_jax.kernels.norms import rms_norm
from rope_jax.kernels.projections import project

TOKENS = 4096
Function = Callable[..., Any]


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def gradients(function: Function) -> Function:
    """Return the function of arguments and a direction that computes all gradients along it."""

    def computed(*arguments: jax.Array) -> Any:
        return jax.vjp(function, *arguments[:-1])[1](arguments[-1])

    return jax.jit(computed)


def plain_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    r = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)
    return x * (r * scale[None])


def plain_feed_forward(x: jax.Array, *weights: jax.Array) -> jax.Array:
    w_gate, w_up, w_down = weights
    gated = jax.checkpoint(lambda gate, up: jax.nn.silu(gate) * up)
    return gated(x @ w_gate, x @ w_up) @ w_down


def cases() -> dict[str, tuple[Function, Function, tuple[jax.Array, ...]]]:
    """Return by name: our function, XLA's, and their arguments."""
    found: dict[str, tuple[Function, Function, tuple[jax.Array, ...]]] = {}
    for length in (128, 512, 4096):
        q = draw(TOKENS // length, length, 4, 32)
        other = BACKENDS["xla" if length <= 512 else "blockwise"].attend
        name = f"attention, {TOKENS // length} × {length}"
        found[name] = gradients(BACKENDS["cpu"].attend), gradients(other), (q, q, q, q)
    for inputs, outputs in ((128, 128), (128, 352), (256, 256), (256, 704)):
        x, dy = draw(TOKENS, inputs), draw(TOKENS, outputs)
        kernel = draw(inputs, outputs)

        def ours(x: jax.Array, dy: jax.Array, kernel: jax.Array = kernel) -> jax.Array:
            return jax.vjp(lambda kernel: project(x, kernel), kernel)[1](dy)[0]

        name = f"projection, {inputs} × {outputs}"
        found[name] = jax.jit(project), jax.jit(lambda x, kernel: x @ kernel), (x, kernel)
        name = f"weight gradient, {inputs} × {outputs}"
        found[name] = jax.jit(ours), jax.jit(lambda x, dy: x.T @ dy), (x, dy)
    for width, hidden in ((128, 352), (256, 704)):
        weights = draw(width, hidden), draw(width, hidden), draw(hidden, width)
        feed_forward = gradients(gated_feed_forward), gradients(plain_feed_forward)
        arrays = draw(TOKENS, width), *weights, draw(TOKENS, width)
        found[f"feed-forward, {width} × {hidden}"] = *feed_forward, arrays
    for width in (128, 256):
        norm = gradients(lambda x, scale: rms_norm(x, scale, 1e-5))
        vectors = draw(TOKENS, width), draw(width), draw(TOKENS, width)
        found[f"RMSNorm, {width}"] = norm, gradients(plain_norm), vectors
    return found


def seconds(function: Function, arguments: tuple[jax.Array, ...], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(function(*arguments))
    return (time.perf_counter() - began) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="turns per side (default: 15)")
    arguments = parser.parse_args()
    keep_freed_memory()
    if load_kernels() is None:
        parser.error("the kernels were not compiled, because there was no C++ compiler")
    print(f"kernels for {load_kernels()}\n")
    print("| | kernel, ms | XLA, ms | ratio (quartiles) |")
    print("|---|---|---|---|")
    for name, (ours, other, arrays) in cases().items():
        times = max(1, int(0.05 / seconds(ours, arrays, 3)))
        seconds(other, arrays, 1)
        pairs = np.array(
            [
                (seconds(ours, arrays, times), seconds(other, arrays, times))
                for _ in range(arguments.rounds)
            ]
        )
        mine, xla = 1e3 * np.median(pairs, axis=0)
        low, ratio, high = np.quantile(pairs[:, 1] / pairs[:, 0], (0.25, 0.5, 0.75))
        print(
            f"| {name} | {mine:.2f} | {xla:.2f} | **{ratio:.2f}** ({low:.2f} to {high:.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
