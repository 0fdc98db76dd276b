"""Time a training step with exact angles against one with the usual float32 product.

    python benchmarks/angles.py

Alternates two training steps in one process (model, batch and optimizer as in train_step.py): one
with `cos_sin`, one with cos and sin of float32 position × float32 frequency. Prints for each shape
the median time of both, and the median and quartiles of the ratio exact / plain over pairs of
neighbouring steps; then the same for the angles alone.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from train_step import Shape, ours

SHAPES = (Shape(128, 128, 32), Shape(128, 512, 8), Shape(256, 512, 8))


def plain_cos_sin(frequencies: Any, positions: Any) -> tuple[Any, Any]:
    """Return cos and sin of the float32 product, otherwise as `cos_sin` does."""
    import jax.numpy as jnp

    from rope_jax.rope.angles import computed_once

    inv_freq = jnp.asarray(frequencies.inv_freq)[..., None, :]
    m = jnp.asarray(frequencies.attention_factor)[..., None, None]
    position = jnp.asarray(positions)[..., :, None].astype(jnp.float32)
    position = position.reshape((1,) * (inv_freq.ndim - position.ndim) + position.shape)
    angles = position * inv_freq
    return computed_once(m * jnp.cos(angles)), computed_once(m * jnp.sin(angles))


def with_plain_angles(shape: Shape) -> Callable[[], float]:
    """Return the training step, traced with the plain product in place of `cos_sin`."""
    step = ours(shape)
    with mock.patch("rope_jax.positions.bands.cos_sin", plain_cos_sin):
        step()
    return step


def seconds(step: Callable[[], Any]) -> float:
    """Return the wall-clock seconds of one call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def report(name: str, exact: list[float], plain: list[float]) -> None:
    """Print times, and ratios of neighbouring steps, which are equally slowed by other load."""
    ratios = np.array(exact) / np.array(plain)
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    times = f"{1e3 * np.median(exact):8.1f} {1e3 * np.median(plain):8.1f} ms"
    print(f"{name:24} {times}   exact / plain {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="steps of each kind (default: 60)")
    steps = parser.parse_args().steps
    for shape in SHAPES:
        exact, plain = ours(shape), with_plain_angles(shape)
        exact()
        for step in (exact, plain):
            seconds(step)
        pairs = [(seconds(exact), seconds(plain)) for _ in range(steps)]
        a, b = map(list, zip(*pairs, strict=True))
        report(f"step, D {shape.hidden_size}, T {shape.seq_len}", a, b)
    import jax

    from rope_jax.rope import RotaryGeometry, cos_sin, parse_scaling

    frequencies = parse_scaling({"type": "none"}).frequencies(RotaryGeometry(64))
    positions = np.arange(65_536, dtype=np.int32)
    jitted = [jax.jit(function) for function in (cos_sin, plain_cos_sin)]
    run = [lambda f=f: jax.block_until_ready(f(frequencies, positions)) for f in jitted]
    for function in run:
        function()
    pairs = [(seconds(run[0]), seconds(run[1])) for _ in range(steps)]
    a, b = map(list, zip(*pairs, strict=True))
    report("65,536 × 32 angles", a, b)


if __name__ == "__main__":
    main()
