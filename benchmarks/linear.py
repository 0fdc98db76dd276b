"""Time linear attention, and measure its memory, beside softmax attention in blocks.

    python benchmarks/linear.py
    python benchmarks/linear.py --lengths 8192 --chunks 32 64 128 256 512

One layer's attention over one window, in float32, with the heads of the demo model, including the
rotation of queries and keys: attention `linear` and `blockwise`, forward, and forward and
backward. The programs of a length take turns, one call each, so that other load on the machine
affects all of them.

Prints for each length and program the median time, and the memory for intermediate results that
the compiler reserves in addition to arguments and results. With --chunks, several chunk lengths of
`linear` take turns.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.attention.backends import BACKENDS
from rope_jax.attention.linear import CHUNK, LinearAttention
from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling, rotate

Arrays = Sequence[Any]


def linear(chunk: int) -> Callable[..., Any]:
    """Return linear attention as a function of q, k, v, cos and sin."""

    def attend(q: Any, k: Any, v: Any, cos: Any, sin: Any) -> Any:
        def turn(x: Any) -> Any:
            return rotate(x, cos, sin)

        return LinearAttention(chunk).attend_features(q, k, v, turn, turn)[0]

    return attend


def blockwise(q: Any, k: Any, v: Any, cos: Any, sin: Any) -> Any:
    """Return softmax attention in blocks."""
    return BACKENDS["blockwise"].attend(rotate(q, cos, sin), rotate(k, cos, sin), v)


def inputs(length: int, heads: int, kv_heads: int, head_dim: int) -> Arrays:
    """Return q, k, v, cos and sin of one window."""
    rng = np.random.default_rng(0)
    shapes = [(1, length, n, head_dim) for n in (heads, kv_heads, kv_heads)]
    q, k, v = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)
    frequencies = parse_scaling({"type": "none"}).frequencies(RotaryGeometry(head_dim))
    return q, k, v, *cos_sin(frequencies, np.arange(length)[None])


def compiled(attend: Callable[..., Any], arrays: Arrays) -> tuple[Any, Any]:
    """Compile the forward pass, and the gradients of a loss by q, k and v."""

    def loss(*arrays: Any) -> Any:
        return jnp.square(attend(*arrays)).sum()

    programs = jax.jit(attend), jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    return programs[0].lower(*arrays).compile(), programs[1].lower(*arrays).compile()


def seconds(program: Any, arrays: Arrays) -> float:
    """Return the wall-clock seconds of one call."""
    start = time.perf_counter()
    jax.block_until_ready(program(*arrays))
    return time.perf_counter() - start


def measure(sides: dict[str, Callable[..., Any]], arrays: Arrays, rounds: int) -> None:
    """Print one row of the table for each side."""
    programs = {name: compiled(attend, arrays) for name, attend in sides.items()}
    times: dict[str, list[list[float]]] = {name: [] for name in sides}
    for index in range(rounds + 1):
        for name, pair in programs.items():
            taken = [seconds(program, arrays) for program in pair]
            if index:  # the first call warms the caches
                times[name].append(taken)
    for name, pair in programs.items():
        forward, both = 1e3 * np.median(times[name], axis=0)
        memory = [p.memory_analysis().temp_size_in_bytes / 2**20 for p in pair]
        print(
            f"| {arrays[0].shape[1]:,} | {name} | {forward:,.1f} | {both:,.1f} "
            f"| {memory[0]:,.1f} | {memory[1]:,.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[1024, 4096, 16384, 65536],
        metavar="T",
        help="tokens per window (default: 1024 4096 16384 65536)",
    )
    parser.add_argument(
        "--chunks",
        type=int,
        nargs="+",
        metavar="C",
        help="compare these chunk lengths instead of linear with blockwise",
    )
    parser.add_argument("--heads", type=int, default=4, help="query heads (default: 4)")
    parser.add_argument("--kv-heads", type=int, default=4, help="key-value heads (default: 4)")
    parser.add_argument("--head-dim", type=int, default=32, help="head width (default: 32)")
    parser.add_argument("--rounds", type=int, default=5, help="calls of each (default: 5)")
    arguments = parser.parse_args()
    sides = {"linear": linear(CHUNK), "blockwise": blockwise}
    if arguments.chunks:
        sides = {f"chunk {chunk}": linear(chunk) for chunk in arguments.chunks}
    print("| T | | forward, ms | forward + backward, ms | forward, MiB | both, MiB |")
    print("|---|---|---|---|---|---|")
    for length in arguments.lengths:
        arrays = inputs(length, arguments.heads, arguments.kv_heads, arguments.head_dim)
        measure(sides, arrays, arguments.rounds)


if __name__ == "__main__":
    main()
