"""Time a mixture of experts against an mlp of the same FLOPs, and against transformers', in turns.

    python benchmarks/experts.py --torch-python TORCH/bin/python

64 experts, of which 8 compute each of 4,096 tokens, forward and with the gradients of tokens and
weights, in float32 on a CPU; the mlp is as wide as 8 experts, and the peer is the block of OLMoE on
PyTorch. Prints each side's median milliseconds, and medians and quartiles of the rounds' ratios:
how many times as long as the mlp experts take, and how many times as long transformers' take.
"""

import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np
from workers import Side, Worker, serve

TOKENS, EXPERTS, CHOSEN = 4096, 64, 8


def ours(name: str, width: int, hidden: int, *, gradient: bool) -> Side:
    """Return the side of this code: experts, or an mlp as wide as those chosen."""
    from rope_jax.devices.malloc import keep_freed_memory

    keep_freed_memory()  # as train.py does
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from rope_jax.config.model import ModelConfig
    from rope_jax.config.resolve import resolve_model

    mixture = {
        "type": "experts",
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "moe_intermediate_size": hidden,
    }
    config = ModelConfig.model_validate(
        {
            "hidden_size": width,
            "intermediate_size": CHOSEN * hidden,
            "product_dtype": None,
            "feed_forward": mixture if name == "experts" else {"type": "mlp"},
        }
    )
    block = config.feed_forward.build(resolve_model(config).spec(), nnx.Rngs(0))
    graph, state = nnx.split(block)
    drawn = np.random.default_rng(0).standard_normal((2, TOKENS, width))
    x, by = jnp.asarray(drawn, jnp.float32)

    def forward(state: nnx.State, x: jax.Array) -> jax.Array:
        out, auxiliary = nnx.merge(graph, state)(x)
        return (out * by).sum() + (0 if auxiliary is None else auxiliary)

    compute = jax.jit(jax.value_and_grad(forward, (0, 1)) if gradient else forward)

    def step() -> float:
        result = jax.block_until_ready(compute(state, x))
        return float(result[0] if gradient else result)

    return Side(step)


def theirs(width: int, hidden: int, *, gradient: bool) -> Side:
    """Return the side of transformers' block, whose experts are chosen by a router without bias."""
    import torch
    from transformers import OlmoeConfig
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

    config = OlmoeConfig(
        hidden_size=width,
        intermediate_size=hidden,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        norm_topk_prob=True,
        experts_implementation="grouped_mm",
    )
    block = OlmoeSparseMoeBlock(config)
    drawn = np.random.default_rng(0).standard_normal((2, TOKENS, width)).astype(np.float32)
    x, by = (torch.from_numpy(each)[None] for each in drawn)
    x.requires_grad_(gradient)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.02)

    def step() -> float:
        with contextlib.nullcontext() if gradient else torch.inference_mode():
            total = (block(x) * by).sum()
            if gradient:
                block.zero_grad()
                x.grad = None
                total.backward()
        return float(total.detach())

    return Side(step)


def compare(torch_python: str, width: int, hidden: int, gradient: bool, rounds: int) -> str:
    """Measure one shape and return its row of the table."""
    sides = {"experts": sys.executable, "mlp": sys.executable, "transformers": torch_python}
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(
                Worker(
                    [python, __file__, "--side", name, *map(str, (width, hidden, int(gradient)))]
                )
            )
            for name, python in sides.items()
        ]
        seconds = np.array([[w.steps(3)["seconds"] / 3 for w in workers] for _ in range(rounds)])
    shown = [f"{1000 * each:.1f}" for each in np.median(seconds, axis=0)]
    for other, inverse in ((1, True), (2, False)):
        ratio = seconds[:, other] / seconds[:, 0]
        low, middle, high = np.quantile(1 / ratio if inverse else ratio, (0.25, 0.5, 0.75))
        shown.append(f"**{middle:.2f}** ({low:.2f} to {high:.2f})")
    return f"| {width} | {hidden} | {'gradient' if gradient else 'forward'} | {' | '.join(shown)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--torch-python", help="a Python with torch and transformers")
    parser.add_argument("--rounds", type=int, default=7, help="turns per side (default: 7)")
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        name, *numbers = arguments.side
        width, hidden, gradient = map(int, numbers)
        if name == "transformers":
            serve(lambda: theirs(width, hidden, gradient=bool(gradient)))
        else:
            sys.path.insert(0, str(Path(__file__).parents[1]))
            serve(lambda: ours(name, width, hidden, gradient=bool(gradient)))
        return
    if not arguments.torch_python:
        parser.error("--torch-python is required: a Python with torch and transformers")
    print("| D | F | | experts, ms | mlp, ms | transformers, ms | to the mlp | to transformers |")
    print("|---|---|---|---|---|---|---|---|")
    for width, hidden in ((256, 128), (512, 256)):
        for gradient in (False, True):
            row = compare(arguments.torch_python, width, hidden, gradient, arguments.rounds)
            print(row, flush=True)


if __name__ == "__main__":
    main()
