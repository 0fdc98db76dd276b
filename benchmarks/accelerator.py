"""Measure training and sweeps on this machine's accelerators.

    python benchmarks/accelerator.py
    python benchmarks/accelerator.py --torch-python TORCH/bin/python

For each model, the training step as train.py compiles it, in bfloat16 on all devices, with the
parameters split over them: tokens per second, the model's FLOP/s as a share of the data sheet's
peak, and the most memory that was in use beside what the compiler planned. Batches are built on the
host and metrics read as the training loop does it, under a guard: a step that waits for the device
without being asked is an error. Then a sweep of two scalings over two lengths: tokens per second.

With a Python that has torch, transformers and CUDA (the one that runs this, or --torch-python),
Hugging Face's Llama takes turns with this code on one GPU: torch.compile, SDPA, autocast to
bfloat16 and fused AdamW.

Without an accelerator, nothing is measured; --on-cpu tries the benchmark on a CPU.
"""

import argparse
import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, get_args

from workers import Side, Worker, serve

from rope_jax.config.model import RematName


class Shape(NamedTuple):
    """A model, and the windows that one device reads at a time.

    kernel: the attention backend; None: the fastest one for the device.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    seq_len: int
    windows: int
    remat: RematName = "none"
    kernel: str | None = None


MODELS = {
    "1b": Shape(2048, 8192, 16, 16, 8, 32_000, 8192, 4),
    "1b-32k": Shape(2048, 8192, 16, 16, 8, 32_000, 32_768, 1, "attention"),
    "125m": Shape(768, 2048, 12, 12, 12, 50_304, 1024, 64),
    "tiny": Shape(64, 128, 2, 4, 2, 300, 64, 2),
}
KERNELS = {"gpu": "cudnn", "tpu": "splash", "cpu": "blockwise"}
LEARNING_RATE = 1e-4
# The first sweep compiles; the second one is measured.
SWEEP_DOCUMENTS, SWEEP_SCALINGS = 4, [{"type": "none"}, {"type": "pi", "factor": 2.0}]


def sizes_of(shape: Shape) -> dict[str, int]:
    """Return a model's sizes by the names that a config here and Hugging Face's have in common."""
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
    }


def config_of(shape: Shape) -> Any:
    """Return the config of a run on all devices, without a corpus."""
    import jax

    from rope_jax.config.training import Config

    devices = jax.device_count()
    model = {
        **sizes_of(shape),
        "dtype": "bfloat16",
        "attention": shape.kernel or KERNELS[jax.default_backend()],
        "remat": shape.remat,
    }
    windows = shape.windows * devices
    stage = {"steps": 10**6, "seq_len": shape.seq_len, "batch_size": windows}
    return Config.model_validate(
        {
            "name": "benchmark",
            "model": model,
            "optim": {"learning_rate": LEARNING_RATE, "warmup_steps": 0},
            "stages": [stage],
            "mesh": {"fsdp": devices},
        }
    )


def training(shape: Shape) -> Side:
    """Return the side of this code's training step."""
    import jax
    import numpy as np

    from rope_jax.data.batches import Batch
    from rope_jax.devices.hardware import device_line, peak_flops
    from rope_jax.devices.mesh import Placement
    from rope_jax.model.cost import flops_per_token
    from rope_jax.model.resolve import resolve_run
    from rope_jax.training.program import Program

    config = config_of(shape)
    program = Program(resolve_run(config), shape.vocabulary, Placement(config.mesh))
    stage, state = program.stages[0], program.fresh_state()
    rows, length = config.stages[0].batch_size, shape.seq_len
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, shape.vocabulary, (rows, length + 1), np.int32)
    batch = Batch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        segment_ids=np.zeros((rows, length), np.int32),
        positions=np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        weights=np.ones((rows, length), np.float32),
    )
    unread = None

    def step() -> float:
        # Like the training loop, read the previous step's metrics while this step runs.
        nonlocal state, unread
        with jax.transfer_guard_device_to_host("disallow"):
            placed = program.placement.batch(lambda own: Batch(*(x[own] for x in batch)), rows)
            state, metrics = stage.train_step(state, placed)
            read, unread = unread, metrics
            return float(jax.device_get(read or metrics).sums.mean())

    def facts() -> dict[str, Any]:
        used = [(device.memory_stats() or {}) for device in jax.local_devices()]
        peak, source = peak_flops()
        per_token = flops_per_token(config.model, shape.vocabulary, length) / peak
        return {
            "devices": device_line("bfloat16"),
            "kernel": config.model.attention,
            "parameters": sum(x.size for x in jax.tree.leaves(state.params)),
            "tokens": rows * length,
            "peak": f"{peak / 1e12:,.0f} TFLOP/s ({source})",
            "utilization_per_token": per_token,
            "planned_bytes": stage.train_bytes,
            "used_bytes": max(stats.get("peak_bytes_in_use", 0) for stats in used),
        }

    return Side(step, facts)


def sweeping(shape: Shape) -> Side:
    """Return the side of a sweep, whose steps return how many tokens it read."""
    import jax
    import numpy as np

    from rope_jax.devices.mesh import Placement
    from rope_jax.evaluation import sweep
    from rope_jax.evaluation.decoder import nll_of_last
    from rope_jax.model.memory import window_bytes
    from rope_jax.model.resolve import resolve_run
    from rope_jax.training.program import Program

    config = config_of(shape)
    placement = Placement(config.mesh)
    program = Program(resolve_run(config), shape.vocabulary, placement)
    # none of the optimizer's state
    params = jax.jit(
        lambda: program.model.init(0), out_shardings=program.state_shardings().params
    )()
    of_last, lengths = nll_of_last(program.model, placement), [shape.seq_len, 4 * shape.seq_len]
    rng = np.random.default_rng(0)
    size = (SWEEP_DOCUMENTS * jax.device_count(), lengths[-1] + 1)
    documents = list(rng.integers(0, shape.vocabulary, size, np.int32))
    programs: dict[Any, Any] = {}

    def step() -> float:
        read = 0.0

        def progress(what: str, done: float, total: float) -> None:
            nonlocal read
            read = total

        sweep(
            lambda params, tokens, rotary: of_last(params, tokens, rotary, None),
            SWEEP_SCALINGS,
            lengths,
            documents,
            params=params,
            geometry=config.rotary_layers,
            nll_of_last=of_last,
            row_bytes=lambda n: float(window_bytes(config.model, shape.vocabulary, n)),
            row_multiple=lambda n: placement.row_shards,
            programs=programs,
            progress=progress,
            bos="none",
            max_blocks=1,
            resamples=100,
        )
        return read

    return Side(step)


def peer(shape: Shape) -> Side:
    """Return the side of Hugging Face's Llama, on one GPU."""
    import torch_llama

    sizes = sizes_of(shape)
    remat = shape.remat != "none"
    return torch_llama.on_gpu(sizes, shape.windows, shape.seq_len, LEARNING_RATE, remat=remat)


SIDES = {"training": training, "sweeping": sweeping, "peer": peer}


def measure(name: str, shape: Shape, rounds: int, steps: int, torch_python: str | None) -> None:
    """Measure one model and print what was found."""
    from rope_jax.devices.memory import in_gib

    me, sizes = str(Path(__file__).resolve()), json.dumps(shape)
    # Two processes share the device's memory if there is a peer.
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if torch_python else {}

    def side(python: str, which: str) -> Worker:
        return Worker([python, me, "--side", which, sizes], environment)

    ours, theirs = [], []
    with contextlib.ExitStack() as stack:
        us = stack.enter_context(side(sys.executable, "training"))
        them = stack.enter_context(side(torch_python, "peer")) if torch_python else None
        for _ in range(rounds):
            ours.append(us.steps(steps))
            if them is not None:
                theirs.append(them.steps(steps))
    with side(sys.executable, "sweeping") as reader:
        swept = reader.steps(1)
    facts = ours[-1]

    def speed(results: list[dict[str, Any]], tokens: int) -> float:
        return steps * tokens / statistics.median(result["seconds"] for result in results)

    def gib(size: int) -> str:
        return f"{in_gib(size)} GiB" if size else "unknown"

    ours_speed, share = speed(ours, facts["tokens"]), facts["utilization_per_token"]
    print(f"{name}: {facts['parameters']:,} parameters on {facts['devices']}, {facts['kernel']}")
    print(f"  windows of {shape.seq_len:,} tokens, {facts['tokens'] // shape.seq_len} per step")
    print(f"  training: {ours_speed:,.0f} tokens/s, {ours_speed * share:.1%} of {facts['peak']}")
    print(
        f"  memory per device: {gib(facts['used_bytes'])} in use at the most, "
        f"{gib(facts['planned_bytes'])} planned"
    )
    print(f"  sweep: {swept['last'] / swept['seconds']:,.0f} tokens/s")
    if theirs:
        theirs_speed = speed(theirs, shape.windows * shape.seq_len)
        low, ratio, high = statistics.quantiles(
            [b["seconds"] / a["seconds"] for a, b in zip(ours, theirs, strict=True)], n=4
        )
        print(
            f"  PyTorch: {theirs_speed:,.0f} tokens/s, {gib(theirs[-1]['used_bytes'])}; this code "
            f"is {ratio:.2f} times as fast per device (quartiles {low:.2f} to {high:.2f})"
        )


def has_peer() -> bool:
    """Whether the Python that runs this has torch, transformers and one GPU for them."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return False
    asks = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", asks]).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        default=["1b", "1b-32k", "125m"],
        help="models (default: 1b 1b-32k 125m)",
    )
    parser.add_argument("--seq-len", type=int, metavar="T", help="tokens per window")
    parser.add_argument("--windows", type=int, metavar="B", help="windows per device and step")
    parser.add_argument("--kernel", metavar="NAME", help="attention backend")
    parser.add_argument(
        "--remat",
        choices=get_args(RematName),
        help="what is computed again; PyTorch's peer has only none and layer",
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns per side (default: 5)")
    parser.add_argument("--steps", type=int, default=10, help="steps per turn (default: 10)")
    parser.add_argument("--torch-python", help="a Python with torch, transformers and CUDA")
    parser.add_argument("--on-cpu", action="store_true", help="run even without an accelerator")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, sizes = arguments.side
        serve(lambda: SIDES[side](Shape(*json.loads(sizes))))
        return
    asks = "import jax; print(jax.default_backend())"
    found = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True)
    # In another process: this one would keep the memory of the devices.
    if found.stdout.strip() == "cpu" and not arguments.on_cpu:
        print("nothing was measured: there is no accelerator here, only a CPU")
        return
    torch_python = arguments.torch_python or (sys.executable if has_peer() else None)
    for name in arguments.models:
        given = {"seq_len": arguments.seq_len, "windows": arguments.windows}
        given |= {"kernel": arguments.kernel, "remat": arguments.remat}
        shape = MODELS[name]._replace(**{k: v for k, v in given.items() if v is not None})
        measure(name, shape, arguments.rounds, arguments.steps, torch_python)


if __name__ == "__main__":
    main()
