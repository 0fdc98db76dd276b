"""Time a sweep of eight entries at four lengths against the sum of PyTorch's windows.

    python benchmarks/sweep.py runs/float32 --torch-python TORCH/bin/python   # see windows.py

Our side is eval_ppl.py with an empty cache of compiled programs, from the start of the process to
its end: loading, compiling, all entries at all lengths on the same tokens, the truncated baseline,
statistics, tables and figures. The other side is what the usual recipe needs at least: one forward
pass per window, entry and length, which is the time of a second pass in `windows.py` times their
number. Prints both, and when the terminal showed the first result.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from windows import SCORED, export, worker, write_tokens
from workers import watch

SCALINGS = (
    "[none, pi, ntk, dynamic_ntk, yarn, llama3, {type: yarn, factor: 4}, {type: ntk, factor: 4}]"
)
ENTRIES = 8


def sweep(run: Path, lengths: list[int], documents: int) -> list[float]:
    """Sweep; return the seconds until the first result shows, and until the end."""
    settings = [f"scalings={SCALINGS}", f"lengths={lengths}", f"max_documents={documents}"]
    settings += ["name=benchmark", "max_blocks=1", f"targets={SCORED}", "--again"]
    with tempfile.TemporaryDirectory() as cache:
        return watch(
            [sys.executable, "eval_ppl.py", str(run), *settings],
            r"length [\d,]+: .+? [\d.]+ nats",
            environment=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache},
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", help="an imported run")
    parser.add_argument("--torch-python", required=True, help="Python with torch, transformers")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--documents", type=int, default=1, help="windows a length (default: 1)")
    arguments = parser.parse_args()
    run = Path(arguments.run).resolve()
    first, ours = sweep(run, arguments.lengths, arguments.documents)
    print(f"first result after {first:.1f} s")
    theirs = 0.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_tokens(run, arguments.lengths, folder)
        exported = export(run, folder)
        for length in arguments.lengths:
            with worker(arguments.torch_python, "theirs", exported, length, folder) as side:
                each = side.steps(1)["seconds"]
            print(f"PyTorch, a window of {length:,}: {each:.2f} s", flush=True)
            theirs += each * arguments.documents * ENTRIES
    print(f"sweep {ours:.0f} s, PyTorch's windows {theirs:.0f} s: **{theirs / ours:.2f}**")


if __name__ == "__main__":
    main()
