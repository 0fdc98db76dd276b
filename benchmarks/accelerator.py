"""Measure training and sweeps on this machine's accelerators.

    python benchmarks/accelerator.py
    python benchmarks/accelerator.py --torch-python TORCH/bin/python

For each model, the training step as train.py compiles it, in bfloat16 on all devices, with the
parameters split over them: tokens per second, the model's FLOP/s as a share of the data sheet's
peak, and the most memory that was in use beside what the compiler planned. Batches are built on the
host and metrics read as the training loop does it, under a guard: a step that waits for the device
without being asked is an error. Then a sweep of two scalings over two lengths: tokens per second.
--only measures one of the two.

With --torch-python, a Python that has torch, transformers and CUDA, Hugging Face's Llama takes
turns with this code on one GPU: torch.compile, SDPA, autocast to bfloat16 and fused AdamW; in the
sweep, as many windows in bfloat16, one at a time.

Without an accelerator, nothing is measured; --on-cpu tries the benchmark on a CPU.
benchmarks/device.sh runs this for the models and lengths that docs/performance.md reports.
"""

import argparse
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from workers import Side, Worker, serve


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
    remat: str = "none"
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
SWEEP_DOCUMENTS, SWEEP_SCALINGS = 2, [{"type": "none"}, {"type": "pi", "factor": 2.0}]


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

    from rope_jax.config.training import TrainingConfig

    devices = jax.device_count()
    model = {
        **sizes_of(shape),
        "dtype": "bfloat16",
        "attention": shape.kernel or KERNELS[jax.default_backend()],
        "remat": shape.remat,
    }
    windows = shape.windows * devices
    stage = {"steps": 10**6, "seq_len": shape.seq_len, "batch_size": windows}
    return TrainingConfig.model_validate(
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

    from rope_jax.config.resolve import resolve_run
    from rope_jax.data.batches import Batch
    from rope_jax.devices.hardware import peak_flops
    from rope_jax.devices.mesh import Placement
    from rope_jax.model.cost import flops_per_token
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
        peak, source = peak_flops()
        per_token = flops_per_token(config.model.spec(), shape.vocabulary, length) / peak
        return describe(config, state.params) | {
            "windows": f"{shape.windows} × {length:,} tokens per device and step",
            "tokens": shape.windows * length,
            "peak": f"{peak / 1e12:,.0f} TFLOP/s ({source})",
            "utilization_per_token": per_token,
            "planned_bytes": stage.train_bytes,
        }

    return Side(step, facts)


def describe(config: Any, params: Any) -> dict[str, Any]:
    """Return the facts of both sides of this code. used_bytes: 0 where they are unknown."""
    import jax

    from rope_jax.devices.hardware import device_line

    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return {
        "devices": device_line("bfloat16"),
        "kernel": config.model.attention,
        "parameters": sum(x.size for x in jax.tree.leaves(params)),
        "used_bytes": max(each.get("peak_bytes_in_use", 0) for each in stats),
    }


def sweep_lengths(shape: Shape) -> list[int]:
    """Return the lengths of a model's sweep."""
    return [shape.seq_len, 4 * shape.seq_len]


def sweeping(shape: Shape) -> Side:
    """Return the side of a sweep, whose steps return how many tokens it read."""
    import jax

    from rope_jax.config.resolve import resolve_run
    from rope_jax.devices.mesh import Placement
    from rope_jax.devices.window_memory import window_bytes
    from rope_jax.evaluation import sweep
    from rope_jax.evaluation.decoder import nll_of_last
    from rope_jax.training.program import Program

    config = config_of(shape)
    placement = Placement(config.mesh)
    program = Program(resolve_run(config), shape.vocabulary, placement)
    # none of the optimizer's state
    params = jax.jit(
        lambda: program.model.init(0), out_shardings=program.state_shardings().params
    )()
    of_last, lengths = nll_of_last(program.model, placement), sweep_lengths(shape)
    rng = np.random.default_rng(0)
    size = (SWEEP_DOCUMENTS * jax.device_count(), lengths[-1] + 1)
    documents = list(rng.integers(0, shape.vocabulary, size, np.int32))
    programs: dict[Any, Any] = {}
    read = 0.0

    def step() -> float:
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
            row_bytes=lambda n: float(window_bytes(config.model.spec(), shape.vocabulary, n)),
            row_multiple=lambda n: placement.row_shards,
            programs=programs,
            progress=progress,
            bos="none",
            max_blocks=1,
            resamples=100,
        )
        return read

    def facts() -> dict[str, Any]:
        return describe(config, params) | {
            "windows": f"{len(SWEEP_SCALINGS)} scalings, {' and '.join(f'{n:,}' for n in lengths)} "
            f"tokens, {SWEEP_DOCUMENTS} documents per device",
            "tokens": read / jax.device_count(),
        }

    return Side(step, facts, warms=False)


def training_peer(shape: Shape) -> Side:
    """Return the side of Hugging Face's Llama, on one GPU."""
    import torch_llama

    sizes = sizes_of(shape)
    remat = shape.remat != "none"
    return torch_llama.on_gpu(sizes, shape.windows, shape.seq_len, LEARNING_RATE, remat=remat)


def sweeping_peer(shape: Shape) -> Side:
    """Return the side of Hugging Face's Llama reading a sweep's windows, on one GPU."""
    import torch_llama

    windows = SWEEP_DOCUMENTS * len(SWEEP_SCALINGS)
    return torch_llama.reading(sizes_of(shape), sweep_lengths(shape), windows)


SIDES = {f.__name__: f for f in (training, training_peer, sweeping, sweeping_peer)}


def measure(
    name: str, shape: Shape, side: str, rounds: int, steps: int, torch_python: str | None
) -> None:
    """Measure a model, in turns with a peer if there is one, and print what was found."""
    from rope_jax.devices.memory import in_gib

    me, sizes = str(Path(__file__).resolve()), json.dumps(shape)
    # Two processes share the device's memory if there is a peer.
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if torch_python else {}
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(Worker([python, me, "--side", which, sizes], environment))
            for python, which in ((sys.executable, side), (torch_python, f"{side}_peer"))
            if python
        ]
        results = [[worker.steps(steps) for worker in workers] for _ in range(rounds)]
    speeds = np.array([[steps * each["tokens"] / each["seconds"] for each in r] for r in results])
    facts, *peers = results[-1]

    def line(speed: float, used: int) -> str:
        memory = f"{in_gib(used)} GiB in use at the most" if used else "memory unknown"
        return f"{speed:,.0f} tokens/s per device, {memory}"

    ours, *theirs = np.median(speeds, axis=0)
    print(f"{name}: {facts['parameters']:,} parameters on {facts['devices']}, {facts['kernel']}")
    print(f"  {side}, {facts['windows']}: {line(ours, facts['used_bytes'])}")
    if side == "training":
        share = ours * facts["utilization_per_token"]
        print(f"  {share:.1%} of {facts['peak']}; {in_gib(facts['planned_bytes'])} GiB planned")
    for peer, speed in zip(peers, theirs, strict=True):
        low, ratio, high = np.quantile(speeds[:, 0] / speeds[:, 1], (0.25, 0.5, 0.75))
        print(f"  PyTorch: {line(speed, peer['used_bytes'])}")
        print(f"  this code is {ratio:.2f} times as fast (quartiles {low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        default=["1b", "1b-32k", "125m"],
        help="models (default: 1b 1b-32k 125m)",
    )
    parser.add_argument("--only", choices=["training", "sweeping"], help="default: both")
    parser.add_argument("--seq-len", type=int, metavar="T", help="tokens per window")
    parser.add_argument("--windows", type=int, metavar="B", help="windows per device and step")
    parser.add_argument("--kernel", metavar="NAME", help="attention backend")
    parser.add_argument("--remat", metavar="NAME", help="PyTorch has only none and layer")
    parser.add_argument("--rounds", type=int, default=5, help="turns (default: 5)")
    parser.add_argument("--steps", type=int, default=10, help="training steps per turn")
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
        sys.exit("nothing was measured: there is no accelerator here, only a CPU")
    for name in arguments.models:
        given = {"seq_len": arguments.seq_len, "windows": arguments.windows}
        given |= {"kernel": arguments.kernel, "remat": arguments.remat}
        shape = MODELS[name]._replace(**{k: v for k, v in given.items() if v is not None})
        for side in ("training", "sweeping"):
            if arguments.only in (side, None):
                steps = arguments.steps if side == "training" else 1
                measure(name, shape, side, arguments.rounds, steps, arguments.torch_python)


if __name__ == "__main__":
    main()
