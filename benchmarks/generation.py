"""Time the continuation of a text by an imported model, against transformers on PyTorch.

    rope-jax import MODEL name=float32 dtype=float32 param_dtype=float32
    python3 -m venv TORCH && TORCH/bin/pip install torch==2.14.1 transformers==5.24.0
    python benchmarks/generation.py runs/float32 BOOK.txt --torch-python TORCH/bin/python

All sides read the same tokens, the beginning of BOOK.txt, with the same weights, and choose the
likeliest token each time. PyTorch's are transformers with SDPA, with its dynamic and with its
static cache. Every side is a process with all cores, and they take turns. Prints the median seconds
up to the first new token, the median milliseconds of each further one, how many of the first new
tokens are ours, and the median and quartiles of the rounds' ratios of whole continuations to ours.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from windows import export
from workers import Side, Worker, serve

PEERS = ("dynamic", "static")


def ours(run_path: str, prompt: np.ndarray, new: int, out: Path) -> Side:
    """Return this code's side."""
    from rope_jax.config.entries import TrainedEntry
    from rope_jax.console import plain_console
    from rope_jax.generation.decoding import CachedDecoder
    from rope_jax.generation.opening import open_model
    from rope_jax.generation.sampling import GREEDY
    from rope_jax.runs.directory import RunDirectory
    from rope_jax.session import open_run

    run = RunDirectory(Path(run_path))
    with open_run(run, run.load_config(), plain_console(), out_of_memory="no memory") as session:
        opened = open_model(session)
    rotary = opened.rotary(TrainedEntry(), max(opened.trained.window, len(prompt) + new))
    decoder = CachedDecoder(opened.model, opened.params, opened.placement)

    def step() -> float:
        began, tokens = time.perf_counter(), list[int]()
        for (token,) in decoder.continue_texts([prompt], rotary, GREEDY.choose, new):
            if not tokens:
                first = time.perf_counter() - began
            tokens.append(token)
        np.save(out, tokens)
        return first

    return Side(step, lambda: {"devices": session.describe_devices()})


def theirs(exported: str, prompt: np.ndarray, new: int, out: Path, cache: str) -> Side:
    """Return the side of transformers with one of its caches."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation.streamers import BaseStreamer

    class Clock(BaseStreamer):
        """Notes when the prompt and each new token have come."""

        times: list[float]

        def put(self, value: object) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    model = AutoModelForCausalLM.from_pretrained(
        exported, dtype="auto", attn_implementation="sdpa"
    ).eval()
    given = torch.from_numpy(prompt.astype(np.int64))[None]
    fixed: dict[str, Any] = {"min_new_tokens": new, "max_new_tokens": new, "do_sample": False}
    fixed |= {"cache_implementation": "static"} if cache == "static" else {}
    clock = Clock()

    @torch.inference_mode()
    def step() -> float:
        began, clock.times = time.perf_counter(), []
        mask = torch.ones_like(given)
        tokens = model.generate(given, attention_mask=mask, streamer=clock, **fixed)
        np.save(out, tokens[0, len(prompt) :].numpy())
        return clock.times[1] - began

    return Side(step)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="an imported model")
    parser.add_argument("text", type=Path, help="a text longer than any prompt")
    parser.add_argument("--torch-python", required=True, help="Python with torch, transformers")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048], help="tokens of prompts")
    parser.add_argument("--new", type=int, default=128, help="tokens to add (default: 128)")
    parser.add_argument("--rounds", type=int, default=5, help="turns per side (default: 5)")
    arguments = parser.parse_args()
    run = arguments.run.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        exported = export(run, folder)
        text = arguments.text.read_text("utf-8")
        tokens = Tokenizer.from_file(str(exported / "tokenizer.json")).encode(text).ids
        for number, length in enumerate(arguments.lengths):
            np.save(folder / "prompt.npy", tokens[:length])
            compare(arguments, run, exported, folder, is_first=number == 0)


def compare(
    arguments: argparse.Namespace, run: Path, exported: Path, folder: Path, *, is_first: bool
) -> None:
    """Measure prompts of one length, and print a row per side."""
    new, rounds = arguments.new, range(arguments.rounds)
    with contextlib.ExitStack() as stack:
        sides: dict[str, Worker] = {}
        for name in ("ours", *PEERS):
            python = sys.executable if name == "ours" else arguments.torch_python
            source = run if name == "ours" else exported
            command = [str(Path(python).absolute()), __file__, name, str(source), str(new)]
            sides[name] = stack.enter_context(Worker([*command, str(folder)]))
        turns = [{name: side.steps(1) for name, side in sides.items()} for _ in rounds]
    if is_first:
        print(f"{turns[0]['ours']['devices']}; {new} new tokens\n")
        print("| prompt | | to the first token, s | ms per further token | same | ratio |")
        print("|---|---|---|---|---|---|")
    written = {name: np.load(folder / f"{name}.npy") for name in sides}
    for name in sides:
        first, total = ([turn[name][key] for turn in turns] for key in ("last", "seconds"))
        further = np.median(np.subtract(total, first)) / (new - 1) * 1000
        ratios = [turn[name]["seconds"] / turn["ours"]["seconds"] for turn in turns]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        ratio = "" if name == "ours" else f"**{middle:.2f}** ({low:.2f} to {high:.2f})"
        same = int((written[name] == written["ours"]).cumprod().sum())
        length = len(np.load(folder / "prompt.npy"))
        row = f"{length:,} | {name} | {np.median(first):.2f} | {further:.1f} | {same} | {ratio}"
        print(f"| {row} |", flush=True)


def build(name: str, source: str, new: int, folder: Path) -> Side:
    prompt, out = np.load(folder / "prompt.npy"), folder / f"{name}.npy"
    if name == "ours":
        return ours(source, prompt, new, out)
    return theirs(source, prompt, new, out, name)


if __name__ == "__main__":
    if sys.argv[1:2] in (["ours"], *([name] for name in PEERS)):
        side, source, new, folder = sys.argv[1:]
        serve(lambda: build(side, source, int(new), Path(folder)))
    else:
        main()
