"""How long a comparison of many runs takes.

    make demo
    python benchmarks/comparisons.py runs/demo
    python benchmarks/comparisons.py runs/demo --experiments 10

Copies a run and one of its sweeps many times, in a temporary folder. Each copy has a name and a
seed of its own; the copies of different experiments have different learning rates. Then runs
`rope-jax compare` on all of them, as often as there are rounds, and prints the seconds that each
took. What is compared, and so what the figures show, is the same curve again and again, but it is
read, checked and resampled like that of any other run.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas
import yaml


def copy(sweep: Path, runs: Path, number: int, experiment: int) -> Path:
    """Copy a sweep and its run's config as run `number`; returns the copy of the sweep."""
    name = f"run-{number}"
    copied = runs / name / "evals" / sweep.name
    shutil.copytree(sweep, copied)
    for source, target in (
        (sweep.parents[1] / "config.yaml", runs / name / "config.yaml"),
        (sweep / "run.yaml", copied / "run.yaml"),
    ):
        config = yaml.safe_load(source.read_text())
        config |= {"name": name, "seed": number}
        config["optim"]["learning_rate"] = 1e-3 * (1 + experiment)
        target.write_text(yaml.safe_dump(config, sort_keys=False))
    results = pandas.read_csv(sweep / "results.csv", dtype=str, keep_default_na=False)
    results["run"], results["seed"] = name, str(number)
    results.to_csv(copied / "results.csv", index=False, lineterminator="\n")
    lines = [json.loads(line) for line in (sweep / "results.jsonl").read_text().splitlines()]
    lines = [json.dumps(line | {"run": name, "seed": number}) + "\n" for line in lines]
    (copied / "results.jsonl").write_text("".join(lines))
    summary = json.loads((sweep / "summary.json").read_text())
    (copied / "summary.json").write_text(json.dumps(summary | {"run": name}, indent=2) + "\n")
    return copied


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run directory, such as runs/demo")
    parser.add_argument("--sweep", default="demo", help="one of its sweeps (default: demo)")
    parser.add_argument("--runs", type=int, default=100, help="how many runs (default: 100)")
    parser.add_argument(
        "--experiments", type=int, default=1, help="how many experiments they are (default: 1)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often (default: 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs, sweep = Path(folder) / "runs", arguments.run / "evals" / arguments.sweep
        numbers = range(arguments.runs)
        copies = [copy(sweep, runs, n, n % arguments.experiments) for n in numbers]
        for number in range(arguments.rounds):
            command = [sys.executable, "-m", "rope_jax", "compare", *map(str, copies)]
            command.append(f"output={folder}/compared-{number}")
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            print(f"{time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
