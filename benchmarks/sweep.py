"""Time a sweep against the usual recipe: Hugging Face's Llama on PyTorch, window by window.

    make demo
    python3 -m venv TORCH && TORCH/bin/pip install torch==2.13.0 transformers
    python benchmarks/sweep.py runs/demo --torch-python TORCH/bin/python [--dtype bfloat16]

Five scalings at seven lengths over the same windows of the same documents, with the run's weights
on both sides. Our side is `rope_jax.evaluation.sweep` as eval_ppl.py calls it, including
compilation. The recipe builds one model per scaling, with Hugging Face's implementation of that
scaling, and computes the loss of each window with all but the scored targets masked. The sides take
turns, one complete sweep each, in separate processes that have all cores. With --dtype bfloat16,
ours has `model.product_dtype: bfloat16`, and PyTorch runs under autocast.

Prints the largest difference between the two sides' NLLs, as a check that both measured the same,
the seconds by length, the ratio of the totals, and the time that per_position saves by reading
shorter windows as prefixes of the longest ones.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096]
FACTOR = 32.0
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {"type": "none"},
    "pi": {"type": "pi", "factor": FACTOR},
    "ntk": {"type": "ntk", "factor": FACTOR},
    "dynamic_ntk": {"type": "dynamic_ntk"},
    "yarn": {"type": "yarn", "factor": FACTOR},
}


def ours(run_path: Path, folder: Path, documents: int, dtype: str, side: str) -> dict[str, Any]:
    """Run one sweep with this code, and write windows and weights for the other side to `folder`.

    side: "same_tokens", "per_position", or "separate": per_position without the prefix shortcut.
    """
    from rope_jax.devices.malloc import keep_freed_memory

    keep_freed_memory()  # as eval_ppl.py does
    import jax

    from rope_jax.data.storage import open_corpus
    from rope_jax.devices.mesh import Placement
    from rope_jax.evaluation import sweep
    from rope_jax.evaluation.plan import Plan
    from rope_jax.model.decoder import language_model
    from rope_jax.model.memory import window_bytes
    from rope_jax.model.resolve import resolve_run
    from rope_jax.rope import Rotary
    from rope_jax.runs.directory import RunDirectory
    from rope_jax.training.checkpoints import newest_params

    if side == "separate":
        Plan.reads_prefixes = lambda *_: False  # type: ignore[method-assign]
    run = RunDirectory(run_path)
    config = run.load_config()
    products = None if dtype == "float32" else dtype
    settings_of_model = {"attention": "auto", "product_dtype": products}
    config = config.model_copy(update={"model": config.model.model_copy(update=settings_of_model)})
    tokenizer = run.open_tokenizer(config)
    texts = open_corpus(config.data, tokenizer).test.texts()
    model = language_model(resolve_run(config), tokenizer.vocab_size)
    like = Placement(config.mesh).shard_state(jax.eval_shape(lambda: model.init(0)))
    _, params = newest_params(run.checkpoints, like, print)
    settings: dict[str, Any] = {
        "max_documents": documents,
        "max_blocks": 1,
        "protocols": ["same_tokens" if side == "same_tokens" else "per_position"],
    }

    def nll_of_last(params: Any, tokens: jax.Array, rotary: Rotary, last: int) -> jax.Array:
        positions = jax.numpy.arange(tokens.shape[1] - 1)[None]
        return model.nll(params, tokens[:, :-1], tokens[:, 1:], positions, None, rotary, last)

    started = time.perf_counter()
    result = sweep(
        lambda p, t, r: nll_of_last(p, t, r, t.shape[1] - 1),
        [{**settings_of, "name": name} for name, settings_of in SCALINGS.items()],
        LENGTHS,
        texts,
        params=params,
        geometry=config.rotary_layers,
        bos_id=tokenizer.bos_id,
        nll_of_last=nll_of_last,
        row_bytes=lambda n: float(window_bytes(config.model, tokenizer.vocab_size, n)),
        **settings,
    )
    seconds = time.perf_counter() - started
    if not (folder / "weights.npz").exists():
        _write_inputs(folder, config, tokenizer, texts, params, documents)
    by_length: dict[int, float] = {}
    # measurements from one forward pass share its seconds: count each pass once
    for n, each in {(m.length, m.seconds) for m in result.measurements}:
        by_length[n] = by_length.get(n, 0.0) + each
    return {
        "seconds": seconds,
        "by_length": by_length,
        "nll": {f"{m.entry} {m.length}": m.sums.mean() for m in result.measurements},
        "compilations": result.compilations,
    }


def _write_inputs(
    folder: Path, config: Any, tokenizer: Any, texts: list[Any], params: Any, documents: int
) -> None:
    """Write the other side's inputs: windows, weights and configs."""
    import jax
    import numpy as np

    from rope_jax.protocols import PROTOCOLS
    from rope_jax.protocols.windows import make_streams

    streams = make_streams(
        texts,
        longest=LENGTHS[-1],
        max_documents=documents,
        bos="document",
        bos_id=tokenizer.bos_id,
        seed=0,
    )
    protocol = PROTOCOLS["same_tokens"](
        streams, lengths=LENGTHS, targets=LENGTHS[0] // 2, max_blocks=1, stride=1, seed=0
    )
    for n in LENGTHS:
        windows = protocol.windows(n)
        np.save(folder / f"windows{n}.npy", streams.cut(windows, n))
    flat: dict[str, Any] = {
        ".".join(str(key.key) for key in path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    np.savez(folder / "weights.npz", **flat)
    (folder / "config.json").write_text(json.dumps(_hf_configs(config, tokenizer.vocab_size)))


def _hf_configs(config: Any, vocab_size: int) -> dict[str, Any]:
    """Return a Hugging Face config for each scaling."""
    from rope_jax.rope import parse_scaling
    from rope_jax.rope.hf import to_hf

    model = config.model
    return {
        name: {
            "vocab_size": vocab_size,
            "hidden_size": model.hidden_size,
            "intermediate_size": model.intermediate_size,
            "num_hidden_layers": model.num_hidden_layers,
            "num_attention_heads": model.num_attention_heads,
            "num_key_value_heads": model.kv_heads,
            "rms_norm_eps": model.rms_norm_eps,
            "tie_word_embeddings": model.tie_word_embeddings,
            "attn_implementation": "sdpa",
            "use_cache": False,
            **to_hf(config.geometry, parse_scaling(settings)),
        }
        for name, settings in SCALINGS.items()
    }


def theirs(folder: Path, dtype: str) -> dict[str, Any]:
    """Run the recipe: one model per scaling, one forward pass per window."""
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    configs = json.loads((folder / "config.json").read_text())
    weights = np.load(folder / "weights.npz")
    nll, by_length = {}, dict.fromkeys(LENGTHS, 0.0)
    started = time.perf_counter()
    for name, settings in configs.items():
        model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
        model.load_state_dict(_state_dict(weights, settings), strict=False)
        rounded = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16")
        with torch.no_grad(), rounded:
            for n in LENGTHS:
                begun = time.perf_counter()
                losses = []
                for window in np.load(folder / f"windows{n}.npy"):
                    tokens = torch.from_numpy(window.astype(np.int64))[None]
                    # Not labels=: the model would take the last target as an input as well.
                    targets = tokens[0, 1:].clone()
                    targets[: -(LENGTHS[0] // 2)] = -100
                    logits = model(input_ids=tokens[:, :-1]).logits[0].float()
                    losses.append(torch.nn.functional.cross_entropy(logits, targets).item())
                nll[f"{name} {n}"] = float(np.mean(losses))
                by_length[n] += time.perf_counter() - begun
    return {"seconds": time.perf_counter() - started, "by_length": by_length, "nll": nll}


def _state_dict(weights: Any, settings: dict[str, Any]) -> dict[str, Any]:
    import torch

    state = {}
    for name in weights.files:
        array, parts = weights[name], name.split(".")
        leaf = {"kernel": "weight", "scale": "weight", "embedding": "weight"}[parts[-1]]
        if parts[0] == "layers":
            for index in range(settings["num_hidden_layers"]):
                value = array[index].T if parts[-1] == "kernel" else array[index]
                key = ".".join(["model.layers", str(index), *parts[1:-1], leaf])
                state[key] = torch.from_numpy(value.copy())
        else:
            state[".".join(["model", *parts[:-1], leaf])] = torch.from_numpy(array.copy())
    return state


def turn(command: list[str]) -> dict[str, Any]:
    """Run one side in a process and return its results, the last line that it prints."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(done.stderr)
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run directory, such as runs/demo")
    parser.add_argument("--torch-python", help="an interpreter with torch and transformers")
    parser.add_argument(
        "--rounds", type=int, default=2, help="sweeps per side (default: 2); 0: only per_position"
    )
    parser.add_argument("--documents", type=int, default=64, help="documents (default: 64)")
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="of the products (default: float32)",
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side == "theirs":
        print(json.dumps(theirs(arguments.folder, arguments.dtype)))
        return
    if arguments.side:
        print(
            json.dumps(
                ours(
                    arguments.run,
                    arguments.folder,
                    arguments.documents,
                    arguments.dtype,
                    arguments.side,
                )
            )
        )
        return
    if arguments.rounds and not arguments.torch_python:
        parser.error("--torch-python is needed: an interpreter with torch and transformers")
    me = str(Path(__file__).resolve())
    with tempfile.TemporaryDirectory() as folder:
        shared = [
            me,
            str(arguments.run.resolve()),
            "--folder",
            folder,
            "--documents",
            str(arguments.documents),
            "--dtype",
            arguments.dtype,
            "--side",
        ]
        rounds = []
        for _ in range(arguments.rounds):
            us = turn([sys.executable, *shared, "same_tokens"])
            them = turn([arguments.torch_python, *shared, "theirs"])
            rounds.append((us, them))
            worst = max(abs(us["nll"][key] - them["nll"][key]) for key in us["nll"])
            print(f"largest difference between mean NLLs: {worst:.2g} nats", flush=True)
            print("| length | " + " | ".join(map(str, LENGTHS)) + " | all |")
            print("|---" * (len(LENGTHS) + 2) + "|")
            for name, side in (("this", us), ("PyTorch", them)):
                cells = [f"{side['by_length'].get(str(n), 0.0):.1f}" for n in LENGTHS]
                print(f"| {name}, s | " + " | ".join(cells) + f" | {side['seconds']:.1f} |")
            print(f"ratio {them['seconds'] / us['seconds']:.2f}", flush=True)
        if rounds:
            total = [sum(side["seconds"] for side in sides) for sides in zip(*rounds, strict=True)]
            print(f"**{total[1] / total[0]:.2f}** times as fast as PyTorch, {len(rounds)} rounds")
        prefixes, separate = (
            turn([sys.executable, *shared, side]) for side in ("per_position", "separate")
        )
        worst = max(abs(prefixes["nll"][key] - separate["nll"][key]) for key in prefixes["nll"])
        print(
            f"per_position: {prefixes['seconds']:.1f} s with the prefix shortcut, "
            f"{separate['seconds']:.1f} s without; NLLs differ by at most {worst:.2g} nats"
        )


if __name__ == "__main__":
    main()
