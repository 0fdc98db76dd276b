"""Time scripts/compare.py on many runs.

    make demo
    python benchmarks/compare.py runs/demo

Copies a run and its sweep under other names and seeds to a temporary folder, and compares all of
them, start-up, tables, figure and page included. Prints the seconds.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy(run: Path, folder: Path, seed: int) -> Path:
    """Copy a run's config and sweeps as those of another seed; return the copy."""
    copied = folder / f"{run.name}-s{seed}"
    shutil.copytree(run, copied, ignore=shutil.ignore_patterns("checkpoints", "events*"))
    for file in [copied / "config.yaml", *copied.glob("evals/*/run.yaml")]:
        text = re.sub(r"^name: .*", f"name: {copied.name}", file.read_text(), flags=re.M)
        file.write_text(re.sub(r"^seed: .*", f"seed: {seed}", text, flags=re.M))
    for sums in copied.glob("evals/*/SHA256SUMS"):
        names = [line.split(maxsplit=1)[1] for line in sums.read_text().splitlines()]
        digests = [hashlib.sha256((sums.parent / name).read_bytes()).hexdigest() for name in names]
        lines = [f"{digest}  {name}\n" for digest, name in zip(digests, names, strict=True)]
        sums.write_text("".join(lines))
    return copied


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run with a sweep, such as runs/demo")
    parser.add_argument("--runs", type=int, default=100, help="number of runs (default: 100)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = [copy(arguments.run, folder, seed) for seed in range(arguments.runs)]
        command = [sys.executable, str(ROOT / "scripts" / "compare.py"), *map(str, runs)]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, f"output={folder / 'comparison'}"], capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stderr)
        print(f"{arguments.runs} runs: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
