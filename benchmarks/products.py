"""Compare the products of a training step with PyTorch's, on this machine's CPU.

    python3 -m venv TORCH && TORCH/bin/pip install torch==2.13.0 transformers
    python benchmarks/products.py --torch-python TORCH/bin/python

For the projections of the models of `benchmarks/train_step.py`: the product of 4,096 tokens and
the weights, and the gradients by tokens and by weights, in float32. Each side runs in its own
process with all cores, and they take turns. Prints both sides' median GFLOP/s.
"""

import argparse
import sys
from pathlib import Path

from workers import Side, Worker, serve

TOKENS, TIMES = 4096, 50
SHAPES = ((128, 128), (128, 352), (256, 256), (256, 704))
PRODUCTS = ("forward", "by tokens", "by weights")


def ours(product: str, inputs: int, outputs: int) -> Side:
    """Return this code's side, whose steps return the first number of the result."""
    from rope_jax.devices.malloc import keep_freed_memory

    keep_freed_memory()
    import jax
    import jax.numpy as jnp
    import numpy as np

    from rope_jax.kernels.projections import project

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)

    x, w, dy = draw(TOKENS, inputs), draw(inputs, outputs), draw(TOKENS, outputs)
    functions = {
        "forward": jax.jit(project),
        "by tokens": jax.jit(lambda x, w: jax.vjp(lambda x: project(x, w), x)[1](dy)[0]),
        "by weights": jax.jit(lambda x, w: jax.vjp(lambda w: project(x, w), w)[1](dy)[0]),
    }

    def step() -> float:
        for _ in range(TIMES):
            result = jax.block_until_ready(functions[product](x, w))
        return float(result[0, 0])

    return Side(step)


def theirs(product: str, inputs: int, outputs: int) -> Side:
    """Return PyTorch's side, whose steps return the first number of the result."""
    import numpy as np
    import torch

    def draw(*shape: int) -> torch.Tensor:
        return torch.tensor(np.random.default_rng(0).standard_normal(shape), dtype=torch.float32)

    x, w, dy = draw(TOKENS, inputs), draw(inputs, outputs), draw(TOKENS, outputs)
    factors = {"forward": (x, w), "by tokens": (dy, w.T), "by weights": (x.T, dy)}
    a, b = factors[product]

    def step() -> float:
        for _ in range(TIMES):
            result = a @ b
        return float(result[0, 0])

    return Side(step)


SIDES = {"ours": ours, "theirs": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", help="a Python interpreter that has torch")
    parser.add_argument("--rounds", type=int, default=7, help="turns per side (default: 7)")
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, product, inputs, outputs = arguments.side
        serve(lambda: SIDES[side](product, int(inputs), int(outputs)))
        return
    if not arguments.torch_python:
        parser.error("--torch-python is required: a Python interpreter that has torch")
    import numpy as np

    print("| product | D × F | GFLOP/s | PyTorch's |")
    print("|---|---|---|---|")
    me = str(Path(__file__).resolve())
    for product in PRODUCTS:
        for inputs, outputs in SHAPES:
            words = product, str(inputs), str(outputs)
            with (
                Worker([sys.executable, me, "--side", "ours", *words]) as us,
                Worker([arguments.torch_python, me, "--side", "theirs", *words]) as them,
            ):
                pairs = [
                    (us.steps(1)["seconds"], them.steps(1)["seconds"])
                    for _ in range(arguments.rounds)
                ]
            operations = 2 * TOKENS * inputs * outputs * TIMES
            mine, torchs = operations / np.median(pairs, axis=0) / 1e9
            print(f"| {product} | {inputs} × {outputs} | {mine:.0f} | {torchs:.0f} |", flush=True)


if __name__ == "__main__":
    main()
