"""Time the NLL of one window of a Llama, against transformers on PyTorch and llama.cpp.

    rope-jax import MODEL name=float32 dtype=float32 param_dtype=float32 "data=DATA"
    rope-jax import MODEL name=bfloat16 dtype=bfloat16 param_dtype=bfloat16 "data=DATA"
    python3 -m venv TORCH && TORCH/bin/pip install torch==2.13.0 transformers
    python benchmarks/windows.py runs/float32 runs/bfloat16 --torch-python TORCH/bin/python

All sides read the same tokens of the run's test split with the same weights, and return the mean
NLL of the window's last 1,024 tokens, which is printed as a check. Ours is what a sweep calls, in
float32 and with weights and activations in bfloat16; PyTorch's is transformers with SDPA and
`logits_to_keep`, in both dtypes too. Every side is a process with all cores. They take turns.
Prints the median seconds, and the median and quartiles of the rounds' ratios.

--llama-cpp FOLDER: also run llama-perplexity, which that folder holds, once with the weights of
each --gguf. It scores the second half of a window, so more tokens than the other sides if windows
are longer than 2,048, and on a text of its own tokens.

XLA_FLAGS=--xla_cpu_max_isa=AVX2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
MKL_ENABLE_INSTRUCTIONS=AVX2 before the command limits both sides to the instructions of a processor
without AVX-512.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from workers import Side, Worker, serve

ROOT = Path(__file__).parents[1]
SCORED = 1024


def write_tokens(run_path: Path, lengths: list[int], folder: Path) -> None:
    """Write one window of each length, the beginning of a text of the run's test split."""
    import numpy as np

    loaded = _loaded(run_path)[0]
    text = max(loaded.corpus.test.texts(), key=len)
    if len(text) <= max(lengths):
        sys.exit(
            f"the run's longest test text has {len(text):,} tokens; name longer ones with data"
        )
    for length in lengths:
        np.save(folder / f"{length}.npy", np.asarray(text[: length + 1], np.int32)[None])


def ours(run_path: str, length: int, folder: Path) -> Side:
    """Return this code's side."""
    from rope_jax.devices.malloc import keep_freed_memory

    keep_freed_memory()  # as eval_ppl.py does
    import jax
    import numpy as np

    from rope_jax.devices.hardware import compiled

    loaded, session = _loaded(Path(run_path))
    step, params = loaded.one_checkpoint(None)
    tokens = np.load(folder / f"{length}.npy")
    positions = np.arange(length, dtype=np.int32)[None]
    scaling = loaded.training.trained_at(step).scaling
    rotary = loaded.training.rotary_layers.rotary(scaling, positions)
    function = jax.jit(loaded.nll_of_last, static_argnums=3)
    nll = compiled(function, params, tokens, rotary, SCORED)
    return Side(
        lambda: float(nll(params, tokens, rotary).mean()),
        lambda: {"devices": session.describe_devices()},
        warms=False,
    )


def _loaded(run_path: Path) -> tuple[Any, Any]:
    from rope_jax.console import plain_console
    from rope_jax.runs.directory import RunDirectory
    from rope_jax.session import open_run
    from rope_jax.sweeps.model import load_model

    run = RunDirectory(run_path)
    with open_run(run, run.load_config(), plain_console(), out_of_memory="no memory") as session:
        return load_model(session), session


def theirs(exported: str, length: int, folder: Path) -> Side:
    """Return the side of transformers, in the dtype of the exported run."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        exported, dtype="auto", attn_implementation="sdpa"
    ).eval()
    tokens = torch.from_numpy(np.load(folder / f"{length}.npy").astype(np.int64))

    @torch.inference_mode()
    def step() -> float:
        given = {"input_ids": tokens[:, :-1], "use_cache": False, "logits_to_keep": SCORED}
        logits = model(**given).logits[0].float()
        return torch.nn.functional.cross_entropy(logits, tokens[0, -SCORED:]).item()

    return Side(step, warms=False)


def worker(python: str, side: str, source: Path, length: int, folder: Path) -> Worker:
    """Start the process of one side. source: a run for "ours", an exported one for "theirs"."""
    return Worker(
        [str(Path(python).absolute()), __file__, side, str(source), str(length), str(folder)]
    )


def export(run: Path, folder: Path) -> Path:
    """Export a run for transformers and return where it lies."""
    out = folder / run.name
    command = [sys.executable, "-m", "rope_jax", "export", str(run), str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def llama_perplexity(binary: Path, gguf: str, length: int, text: Path) -> float:
    """Return the seconds that llama-perplexity reports for one window."""
    command = [str(binary), "-m", gguf, "-f", str(text), "--chunks", "1"]
    command += ["-c", str(length), "-b", str(length)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"([\d.]+) seconds per pass", done.stdout + done.stderr)
    if found is None:
        sys.exit(done.stderr)
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="a model, imported in one or more dtypes")
    parser.add_argument("--torch-python", required=True, help="Python with torch, transformers")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=5, help="turns per side (default: 5)")
    parser.add_argument("--llama-cpp", type=Path, help="a folder with llama-perplexity")
    parser.add_argument("--gguf", nargs="*", default=[], help="the same weights for llama.cpp")
    parser.add_argument("--text", type=Path, help="a text for llama.cpp, longer than any window")
    arguments = parser.parse_args()
    if arguments.gguf and not (arguments.llama_cpp and arguments.text):
        parser.error("--gguf needs --llama-cpp and --text")
    runs = [Path(run).resolve() for run in arguments.runs]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_tokens(runs[0], arguments.lengths, folder)
        exported = {run: export(run, folder) for run in runs}
        for length in arguments.lengths:
            compare(arguments, exported, length, folder)


def compare(
    arguments: argparse.Namespace, exported: dict[Path, Path], length: int, folder: Path
) -> None:
    """Measure windows of one length and print a row per side."""
    import numpy as np

    seconds: dict[str, list[float]] = {}
    results: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        sides: dict[str, Worker] = {}
        for run, out in exported.items():
            us = worker(sys.executable, "ours", run, length, folder)
            them = worker(arguments.torch_python, "theirs", out, length, folder)
            for name, side in ((run.name, us), (f"PyTorch, {run.name}", them)):
                sides[name] = stack.enter_context(side)
        for _ in range(arguments.rounds):
            for name, side in sides.items():
                results[name] = side.steps(1)
                seconds.setdefault(name, []).append(results[name]["seconds"])
    for gguf in arguments.gguf:  # once, when the other sides have ended
        binary = arguments.llama_cpp / "llama-perplexity"
        reported = llama_perplexity(binary, gguf, length, arguments.text)
        seconds[f"llama.cpp, {Path(gguf).stem}"] = [reported]
    if length == arguments.lengths[0]:
        for name in (run.name for run in exported):
            print(f"{name}: {results[name]['devices']}")
        print("\n| tokens | | seconds | NLL | PyTorch's / this (quartiles) |")
        print("|---|---|---|---|---|")
    for name, own in seconds.items():
        nll, ratio = results.get(name), ""
        if peer := seconds.get(f"PyTorch, {name}"):
            low, middle, high = np.quantile(np.divide(peer, own), (0.25, 0.5, 0.75))
            ratio = f"**{middle:.2f}** ({low:.2f} to {high:.2f})"
        shown = f"{nll['last']:.5f}" if nll else ""
        print(f"| {length:,} | {name} | {np.median(own):.2f} | {shown} | {ratio} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] in (["ours"], ["theirs"]):
        side, source, length, folder = sys.argv[1:]
        build = {"ours": ours, "theirs": theirs}[side]
        serve(lambda: build(source, int(length), Path(folder)))
    else:
        main()
