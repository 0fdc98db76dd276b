"""Time attention under every position map but `fitted`, and every encoding, beside plain attention.

    python benchmarks/positions.py
    python benchmarks/positions.py --length 16384 --rounds 5
    python benchmarks/positions.py --attention cpu

One layer's attention over one window, forward, in float32, with the heads of SmolLM2-135M:
rotating queries and keys, scores, softmax and values. The programs take turns. The ratio is the
median over rounds of the time to that of `rope` for maps and rotary encodings, and of `none` for
the other encodings, which is called just before, so that other load on the machine affects both.
Memory is what the compiler reserves for intermediate results.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.attention.backends import AttentionName
from rope_jax.blocks.attention import attend
from rope_jax.blocks.base import DecoderSpec
from rope_jax.blocks.mixer import AttentionSpan, LayerInputs
from rope_jax.devices.malloc import keep_freed_memory
from rope_jax.positions.bands import band_masks, rotations
from rope_jax.positions.encodings import ENCODINGS, Encoding, RoPE, Sizes
from rope_jax.positions.mapping import with_map
from rope_jax.positions.maps import MAPS, PositionMap
from rope_jax.rope import Rotary, RotaryGeometry, RotaryLayers, parse_scaling

HEADS, KV_HEADS, HEAD_DIM, WINDOW = 9, 3, 64, 2048


def rotary_of(encoding: Encoding, map_: PositionMap | None, length: int) -> Rotary:
    """Return the frequencies, and the bands of a map, for one window."""
    geometry = RotaryGeometry(encoding.rotary_dim(HEAD_DIM), train_length=WINDOW)
    layers, positions = RotaryLayers(geometry), np.arange(length, dtype=np.int32)[None]
    rotary = layers.rotary(parse_scaling("none"), positions)
    if map_ is None:
        return rotary
    return with_map(rotary, map_, layers, positions, window=WINDOW, seq_len=length)


class Program(NamedTuple):
    """One layer's attention, compiled."""

    run: Callable[..., Any]
    """A function of q, k and v."""
    base: str
    """The name of the program that it is compared with."""
    temporary_mib: float


def layer(
    attention: AttentionName, encoding: Encoding, map_: PositionMap | None, length: int
) -> Program:
    """Compile one layer's attention."""
    encoding = encoding.resolved(length)
    rotary = rotary_of(encoding, map_, length)
    positions = jnp.arange(length)[None]
    sizes = Sizes(1, HEADS * HEAD_DIM, HEADS, HEAD_DIM, 0.02)
    parameters = encoding.initial(sizes, jax.random.key(0))

    def run(rotary: Rotary, parameters: Any, q: Any, k: Any, v: Any) -> Any:
        pairs = rotary.frequencies.inv_freq.shape[-1]
        numbers = encoding.layer_params(parameters, positions, pairs, HEADS)
        own = jax.tree.map(lambda leaf: leaf[0], (rotations(rotary, positions), numbers))
        scale, masks = jnp.ones((1, length), jnp.float32), band_masks(rotary)
        inputs = LayerInputs(own[0], scale, own[1], None, None, masks)
        spec = DecoderSpec(attention=attention, encoding=encoding)
        return attend(spec, AttentionSpan(), inputs, q, k, v)[0]

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in qkv_shapes(length)]
    program = jax.jit(run).lower(rotary, parameters, *shapes).compile()
    memory = program.memory_analysis()
    assert memory is not None  # CPU, GPU and TPU all report it
    return Program(
        functools.partial(program, rotary, parameters),
        "rope" if encoding.is_rotary else "none",
        memory.temp_size_in_bytes / 2**20,
    )


def qkv_shapes(length: int) -> list[tuple[int, ...]]:
    return [(1, length, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]


def sides(attention: AttentionName, length: int) -> dict[str, Program]:
    """Return the programs by name."""
    made = {
        name: layer(attention, encoding(type=name), None, length)
        for name, encoding in ENCODINGS.items()
    }
    for name, map_ in MAPS.items():
        if name == "fitted":  # whose numbers only a fit can give
            continue
        settings: dict[str, Any] = {"type": name}
        if name == "far_frequencies":
            settings["far"] = {"type": "pi", "factor": 32.0}
        # once with half of the text near, so that both bands have much to do, once as by default
        variants: list[tuple[int, dict[str, Any]]] = [(WINDOW, {})]
        if "window" in map_.model_fields:
            variants.insert(0, (3 * length // 4, {"window": length // 2}))
        for window, more in variants:
            resolved = map_.model_validate(settings | more).at(window, length)
            assert resolved is not None  # the text is longer than the window
            made[f"map {resolved.label}"] = layer(attention, RoPE(), resolved, length)
    return made


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--length", type=int, default=4096, help="tokens in the window")
    parser.add_argument(
        "--attention",
        choices=["blockwise", "cpu"],
        default="blockwise",
        help="in blocks by XLA, or by the kernel for CPUs where it can (default: blockwise)",
    )
    parser.add_argument("--rounds", type=int, default=11, help="calls of each program")
    arguments = parser.parse_args()
    keep_freed_memory()
    rng = np.random.default_rng(0)
    shapes = qkv_shapes(arguments.length)
    qkv = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
    programs = sides(arguments.attention, arguments.length)

    def seconds(program: Program) -> float:
        start = time.perf_counter()
        jax.block_until_ready(program.run(*qkv))
        return time.perf_counter() - start

    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for index in range(arguments.rounds + 1):  # the first round warms up
        for name, program in programs.items():
            pair = seconds(programs[program.base]), seconds(program)
            if index:
                pairs[name].append(pair)
    print(f"{arguments.length:,} tokens, {arguments.rounds} rounds; ratio: median (quartiles)")
    for name, program in programs.items():
        base, own = np.array(pairs[name]).T
        low, middle, high = np.quantile(own / base, [0.25, 0.5, 0.75])
        print(
            f"{name:44} {1e3 * np.median(own):8.1f} ms  {middle:5.2f} ({low:.2f} to "
            f"{high:.2f}) × {program.base}  {program.temporary_mib:7.1f} MiB"
        )


if __name__ == "__main__":
    main()
