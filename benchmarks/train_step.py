"""Compare the training step with Hugging Face's Llama on PyTorch, on this machine's CPU.

    python3 -m venv TORCH && TORCH/bin/pip install torch==2.13.0 transformers
    python benchmarks/train_step.py --torch-python TORCH/bin/python

Both run a complete training step: forward, backward, clipping by global norm and AdamW, on the same
model (Llama with tied embeddings, by default 4 layers and a byte vocabulary; 4 heads, and at
width 576 SmolLM2's 9 heads, 3 for keys and values), in float32. SmolLM2-135M itself is

    … --widths 576 --lengths 2048 --tokens 2048 --layers 30 --vocabulary 49152

With --dtype bfloat16, ours has `model.product_dtype: bfloat16`, and PyTorch runs under autocast.
With --compile, PyTorch's model is given to torch.compile. With --dtype bfloat16 --peer float32,
the other side is not PyTorch, but this code's own float32 step.
Neither reads from disk. Ours is `make_train_step` as train.py calls it, which also masks document
borders and sums the loss by position. PyTorch's windows are whole documents, so its causal kernel
needs no mask. Each side runs in its own process with all cores. They take turns, a few steps at a
time, so that other load on the machine affects both.

Prints each side's median tokens per second, the median and quartiles of the rounds' ratios, and
the most memory that each process had.
"""

import argparse
import resource
import sys
from pathlib import Path
from typing import NamedTuple

from workers import Side, Worker, serve


class Shape(NamedTuple):
    """The width of the model, and the size of a batch."""

    hidden_size: int
    seq_len: int
    batch_size: int
    layers: int
    vocabulary: int
    dtype: str = "float32"
    compiled: bool = False
    """Whether PyTorch compiles its model."""

    @property
    def sizes(self) -> dict[str, int]:
        """The model's sizes, by their names here and in transformers."""
        heads, kv_heads = (9, 3) if self.hidden_size == 576 else (4, 4)
        return {
            "hidden_size": self.hidden_size,
            # about 8/3 of the width, as in Llama, rounded up to a multiple of 32
            "intermediate_size": -(-8 * self.hidden_size // 3 // 32) * 32,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
        }


LEARNING_RATE = 1e-3


def ours(shape: Shape) -> Side:
    """Return this code's side, whose steps return the previous step's loss."""
    from rope_jax.devices.malloc import keep_freed_memory

    keep_freed_memory()  # as train.py does
    import jax
    import numpy as np

    from rope_jax.config.resolve import resolve_model
    from rope_jax.config.training import TrainingConfig
    from rope_jax.data.batches import Batch
    from rope_jax.devices.hardware import compiled
    from rope_jax.model.decoder import LanguageModel
    from rope_jax.rope import Rotary
    from rope_jax.training.optimizer import optimizer
    from rope_jax.training.step import TrainState, make_train_step

    batch_size, seq_len = shape.batch_size, shape.seq_len
    config = TrainingConfig.model_validate(
        {
            "name": "benchmark",
            "model": {
                **shape.sizes,
                "product_dtype": None if shape.dtype == "float32" else shape.dtype,
            },
            "optim": {"learning_rate": LEARNING_RATE, "warmup_steps": 0},
            "stages": [{"steps": 10**6, "seq_len": seq_len, "batch_size": batch_size}],
        }
    )
    model, adamw = (
        LanguageModel(resolve_model(config.model).spec(), shape.vocabulary),
        optimizer(config),
    )
    rotary = Rotary.shared(config.stage_scaling(0).frequencies(config.geometry))
    params = model.init(0)
    state = TrainState(params, jax.jit(adamw.init)(params))
    tokens = np.random.default_rng(0).integers(0, 256, (batch_size, seq_len + 1), np.int32)
    batch = Batch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        segment_ids=np.zeros((batch_size, seq_len), np.int32),
        positions=np.tile(np.arange(seq_len, dtype=np.int32), (batch_size, 1)),
        weights=np.ones((batch_size, seq_len), np.float32),
    )
    train_step = compiled(make_train_step(model, adamw), state, batch, rotary)

    unread = None

    def step() -> float:
        # Like the training loop, read the previous step's loss while this step runs.
        nonlocal state, unread
        state, metrics = train_step(state, batch, rotary)
        read, unread = unread, metrics
        return float((read or metrics).sums.mean())

    return Side(step, memory)


def theirs(shape: Shape) -> Side:
    """Return the side of Hugging Face's Llama, whose steps return their loss."""
    import torch_llama

    side = torch_llama.on_cpu(
        {"vocab_size": shape.vocabulary, **shape.sizes},
        *(shape.batch_size, shape.seq_len, LEARNING_RATE),
        rounds_products=shape.dtype == "bfloat16",
        compiled=shape.compiled,
    )
    return side._replace(facts=memory)


def memory() -> dict[str, float]:
    """Return the most memory that this process has had, in GiB."""
    return {"GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


SIDES = {"ours": ours, "theirs": theirs}


def command(python: str, side: str, shape: Shape) -> list[str]:
    """Return the command that serves one side."""
    return [python, str(Path(__file__).resolve()), "--side", side, *map(str, shape)]


def compare(shape: Shape, peer: list[str], rounds: int, steps: int) -> str:
    """Measure one shape and return its row of the table. peer: the command of the other side."""
    import numpy as np

    tokens = steps * shape.batch_size * shape.seq_len
    with (
        Worker(command(sys.executable, "ours", shape)) as us,
        Worker(peer) as them,
    ):
        # The sides take turns at going first.
        pairs: list[tuple[dict[str, float], dict[str, float]]] = []
        for index in range(rounds):
            if index % 2:
                second, first = them.steps(steps), us.steps(steps)
            else:
                first, second = us.steps(steps), them.steps(steps)
            pairs.append((first, second))
    seconds = np.array([[side["seconds"] for side in pair] for pair in pairs])
    first, second = pairs[-1]
    speed = tokens / np.median(seconds, axis=0)
    low, ratio, high = np.quantile(seconds[:, 1] / seconds[:, 0], (0.25, 0.5, 0.75))
    return (
        f"| {shape.hidden_size} | {shape.seq_len} | {shape.batch_size} | {speed[0]:,.0f} "
        f"| {speed[1]:,.0f} | **{ratio:.2f}** ({low:.2f} to {high:.2f}) "
        f"| {us.start_seconds:.1f} | {them.start_seconds:.1f} "
        f"| {first['GiB']:.1f} | {second['GiB']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--torch-python", help="a Python interpreter that has torch and transformers"
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns per side (default: 15)")
    parser.add_argument("--steps", type=int, default=5, help="steps per turn (default: 5)")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per step (default: 4096)")
    parser.add_argument("--layers", type=int, default=4, help="layers (default: 4)")
    parser.add_argument("--vocabulary", type=int, default=257, help="tokens (default: 257)")
    parser.add_argument(
        "--widths",
        type=int,
        nargs="+",
        default=[128, 256],
        metavar="D",
        help="widths of the model (default: 128 256)",
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[128, 512],
        metavar="T",
        help="tokens per window (default: 128 512)",
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="type of the factors of matrix products (default: float32)",
    )
    parser.add_argument(
        "--peer",
        choices=["PyTorch", "float32"],
        default="PyTorch",
        help="the other side: PyTorch, or this code in float32 (default: PyTorch)",
    )
    parser.add_argument("--compile", action="store_true", help="compile PyTorch's model")
    parser.add_argument("--side", nargs=8, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, *sizes, dtype, compiled = arguments.side
        width, length, windows, layers, words = map(int, sizes)
        shape = Shape(width, length, windows, layers, words, dtype, compiled == "True")
        serve(lambda: SIDES[side](shape))
        return
    if arguments.peer == "PyTorch" and not arguments.torch_python:
        parser.error(
            "--torch-python is required: a Python interpreter that has torch and transformers"
        )
    other = f"{arguments.peer}'s"
    columns = ["D", "T", "windows", "tokens/s", other, "ratio (quartiles)"]
    columns += ["start, s", other, "GiB", other]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for width in arguments.widths:
        for length in arguments.lengths:
            batch_size = max(1, arguments.tokens // length)
            shape = Shape(
                *(width, length, batch_size, arguments.layers, arguments.vocabulary),
                *(arguments.dtype, arguments.compile),
            )
            if arguments.peer == "PyTorch":
                peer = command(arguments.torch_python, "theirs", shape)
            else:
                peer = command(sys.executable, "ours", shape._replace(dtype="float32"))
            print(compare(shape, peer, arguments.rounds, arguments.steps), flush=True)


if __name__ == "__main__":
    main()
