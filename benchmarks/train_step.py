"""Compare the training step with Hugging Face's Llama on PyTorch, on this machine's CPU.

    python3 -m venv TORCH && TORCH/bin/pip install torch==2.13.0 transformers
    python benchmarks/train_step.py --torch-python TORCH/bin/python

Both run a whole training step: forward, backward, clipping by global norm and AdamW, all in
float32, on the same model (Llama with tied embeddings, 4 layers, 4 heads and a byte vocabulary).
Neither reads the disk. Ours is `make_train_step` as train.py calls it, which also masks document
borders and sums the loss by position. The peer's windows are whole documents, so PyTorch's causal
kernel needs no mask. Each runs in its own process with all cores. They take turns, a few steps at a
time, so that other load on the machine affects both.

Prints the median over the rounds of each side's tokens per second, and the median of the rounds'
ratios with its quartiles.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Shape(NamedTuple):
    """The width of the model, and the size of a batch."""

    hidden_size: int
    seq_len: int
    batch_size: int

    @property
    def intermediate_size(self) -> int:
        """As in Llama: about 8/3 of the width, rounded up to a multiple of 32."""
        return -(-8 * self.hidden_size // 3 // 32) * 32


LAYERS, HEADS, VOCABULARY, LEARNING_RATE = 4, 4, 257, 1e-3


def ours(shape: Shape) -> Callable[[], float]:
    """Return a function that runs one step of ours and returns the loss of the step before."""
    from rope_jax.devices.malloc import keep_freed_memory

    keep_freed_memory()  # as train.py does
    import jax
    import numpy as np

    from rope_jax.config.training import Config
    from rope_jax.data.batches import Batch
    from rope_jax.model.decoder import LanguageModel
    from rope_jax.rope import Rotary
    from rope_jax.training.optimizer import optimizer
    from rope_jax.training.step import TrainState, make_train_step

    batch_size, seq_len = shape.batch_size, shape.seq_len
    config = Config.model_validate(
        {
            "name": "benchmark",
            "model": {
                "hidden_size": shape.hidden_size,
                "intermediate_size": shape.intermediate_size,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
            },
            "optim": {"learning_rate": LEARNING_RATE, "warmup_steps": 0},
            "stages": [{"steps": 10**6, "seq_len": seq_len, "batch_size": batch_size}],
        }
    )
    model, adamw = LanguageModel(config.model, VOCABULARY), optimizer(config)
    rotary = Rotary.shared(config.stage_scaling(0).frequencies(config.geometry))
    params = model.init(0)
    state = TrainState(params, jax.jit(adamw.init)(params))
    train_step = make_train_step(model, adamw)
    tokens = np.random.default_rng(0).integers(0, 256, (batch_size, seq_len + 1), np.int32)
    batch = Batch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        segment_ids=np.zeros((batch_size, seq_len), np.int32),
        positions=np.tile(np.arange(seq_len, dtype=np.int32), (batch_size, 1)),
        weights=np.ones((batch_size, seq_len), np.float32),
    )

    unread = None

    def step() -> float:
        # As the training loop does: read the previous step's loss while this step runs.
        nonlocal state, unread
        state, metrics = train_step(state, batch, rotary)
        read, unread = unread, metrics
        return float((read or metrics).sums.mean())

    return step


def theirs(shape: Shape) -> Callable[[], float]:
    """Return a function that runs one step of Hugging Face's Llama and returns its loss."""
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            max_position_embeddings=shape.seq_len,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            use_cache=False,
        )
    )
    model.train()
    adamw = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    size = (shape.batch_size, shape.seq_len + 1)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 256, size, np.int64))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> float:
        logits = model(input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        return loss.item()

    return step


SIDES = {"ours": ours, "theirs": theirs}


def work(side: str, shape: Shape) -> None:
    """Serve as one side's process: read a number of steps from stdin, run them, print the seconds.

    Every printed line holds the seconds and the last loss. The first line, printed before anything
    is read, is for the start and the first step.
    """
    with contextlib.redirect_stdout(sys.stderr):  # stdout carries answers; libraries print too
        start = time.perf_counter()
        step = SIDES[side](shape)
        first = step()
    print(time.perf_counter() - start, first, flush=True)
    for line in sys.stdin:
        step()  # warms the caches again after the other side's turn
        start = time.perf_counter()
        for _ in range(int(line)):
            loss = step()
        print(time.perf_counter() - start, loss, flush=True)


class Worker:
    """The process of one side."""

    def __init__(self, python: str, side: str, shape: Shape) -> None:
        command = [python, str(Path(__file__).resolve()), "--side", side, *map(str, shape)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.start_seconds, self.loss = self._answer()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def steps(self, count: int) -> float:
        """Run steps and return the seconds that they took."""
        assert self._process.stdin
        print(count, file=self._process.stdin, flush=True)
        return self._answer()[0]

    def _answer(self) -> tuple[float, float]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a worker process died; its error is printed above")
        seconds, loss = map(float, line.split())
        return seconds, loss


def compare(torch_python: str, shape: Shape, rounds: int, steps: int) -> str:
    """Measure one shape and return its row of the table."""
    import numpy as np

    tokens = steps * shape.batch_size * shape.seq_len
    with (
        Worker(sys.executable, "ours", shape) as us,
        Worker(torch_python, "theirs", shape) as them,
    ):
        # The two alternate in going first.
        pairs = []
        for index in range(rounds):
            if index % 2:
                second, first = them.steps(steps), us.steps(steps)
            else:
                first, second = us.steps(steps), them.steps(steps)
            pairs.append((first, second))
    seconds = np.array(pairs)
    speed = tokens / np.median(seconds, axis=0)
    low, ratio, high = np.quantile(seconds[:, 1] / seconds[:, 0], (0.25, 0.5, 0.75))
    return (
        f"| {shape.hidden_size} | {shape.seq_len} | {shape.batch_size} | {speed[0]:,.0f} "
        f"| {speed[1]:,.0f} | **{ratio:.2f}** ({low:.2f} to {high:.2f}) "
        f"| {us.start_seconds:.1f} | {them.start_seconds:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--torch-python", help="a Python interpreter that has torch and transformers"
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns per side (default: 15)")
    parser.add_argument("--steps", type=int, default=5, help="steps per turn (default: 5)")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per step (default: 4096)")
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
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, *sizes = arguments.side
        work(side, Shape(*map(int, sizes)))
        return
    if not arguments.torch_python:
        parser.error(
            "--torch-python is required: a Python interpreter that has torch and transformers"
        )
    print("| D | T | windows | tokens/s | PyTorch's | ratio (quartiles) | start, s | PyTorch's |")
    print("|---|---|---|---|---|---|---|---|")
    for width in arguments.widths:
        for length in arguments.lengths:
            shape = Shape(width, length, max(1, arguments.tokens // length))
            row = compare(arguments.torch_python, shape, arguments.rounds, arguments.steps)
            print(row, flush=True)


if __name__ == "__main__":
    main()
