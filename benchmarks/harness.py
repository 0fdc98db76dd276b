"""Compare the answers of lm-evaluation-harness on this code and on PyTorch, sample by sample.

    python3 -m venv TORCH && TORCH/bin/pip install torch 'lm_eval[hf,ruler]'
    python benchmarks/harness.py RUN --torch-python TORCH/bin/python \\
        --tasks niah_single_1 ruler_vt tests/harness/tasks/choices.yaml --length 2048 --limit 20

The run is exported, and both sides read its weights in float32: `--model hf` those of the exported
folder, `rope_jax` those of the run. Prints a line of CSV per task: how many samples have the same
metrics, how many requests the same generated text or first choice, the largest difference of a
log-likelihood in nats, and each side's seconds, with compiling.

--strategy YAML: as the run is read here; --torch-rope JSON: rope_parameters of the same for
transformers.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
COLUMNS = "task,length,samples,same_metrics,requests,same_answers,nats,seconds_torch,seconds"


def evaluate(given: dict[str, Any]) -> None:
    """Be one side's process: write the samples of every task and the seconds it took."""
    import lm_eval
    import nltk  # noqa: F401  (draws random numbers once: with which task, depends on the side)

    if given["model"] == "rope_jax":
        import rope_jax.harness  # noqa: F401  (registers the model)
    metadata = {"tokenizer": given["tokenizer"], "max_seq_lengths": [given["length"]]}
    measured = {}
    for task in given["tasks"]:
        began = time.perf_counter()
        results = lm_eval.simple_evaluate(
            given["model"],
            model_args=given["model_args"],
            batch_size=given["batch_size"],
            tasks=[task],
            limit=given["limit"],
            bootstrap_iters=0,
            metadata=metadata,
        )
        assert results
        ((name, samples),) = results["samples"].items()
        measured[name] = {"seconds": time.perf_counter() - began, "samples": samples}
    Path(given["output"]).write_text(json.dumps(measured, default=str), "utf-8")


def compare(task: str, length: int, torch: dict[str, Any], here: dict[str, Any]) -> str:
    """Return a task's line of the table."""
    pairs = list(zip(torch["samples"], here["samples"], strict=True))
    same_metrics = requests = same = 0
    largest = 0.0
    for theirs, ours in pairs:
        assert theirs["prompt_hash"] == ours["prompt_hash"], f"{task}: the questions differ"
        # a log-likelihood, the metric of a rolling text, comes with the number of its words
        a, b = (np.array([side[key] for key in theirs["metrics"]]) for side in (theirs, ours))
        same_metrics += np.allclose(a, b, rtol=0, atol=1e-3)
        for (a,), (b,) in zip(theirs["resps"], ours["resps"], strict=True):
            requests += 1
            if isinstance(a, str):
                same += a == b
                continue
            # a log-likelihood, and in choices whether it is the first choice
            (a, *is_first), (b, *is_first_here) = (
                x if isinstance(x, list) else [x] for x in (a, b)
            )
            same += is_first == is_first_here
            largest = max(largest, abs(a - b))
    seconds = (f"{side['seconds']:.0f}" for side in (torch, here))
    counts = map(str, (length, len(pairs), same_metrics, requests, same))
    return ",".join([task, *counts, f"{largest:.1e}", *seconds])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run in float32")
    parser.add_argument("--torch-python", required=True, help="Python with torch and lm_eval[hf]")
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--length", type=int, required=True, help="max_length, and RULER's length")
    parser.add_argument("--limit", type=int, default=20, help="samples of each task (default: 20)")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--strategy", default="trained")
    parser.add_argument("--torch-rope", type=json.loads, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        exported, measured = str(Path(temporary, "exported")), []
        command = [sys.executable, "-m", "rope_jax", "export", str(arguments.run), exported]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rope = {} if arguments.torch_rope is None else {"rope_parameters": arguments.torch_rope}
        theirs = {"pretrained": exported, "dtype": "float32", "device": "cpu", **rope}
        ours = {"run": str(arguments.run), "strategy": arguments.strategy}
        sides = ((arguments.torch_python, "hf", theirs), (sys.executable, "rope_jax", ours))
        for python, model, model_args in sides:
            output = Path(temporary, f"{model}.json")
            given = {
                **{key: getattr(arguments, key) for key in ("tasks", "length", "limit")},
                "batch_size": arguments.batch_size,
                "model": model,
                "model_args": {**model_args, "max_length": arguments.length},
                "tokenizer": exported,
                "output": str(output),
            }
            command = [python, __file__, json.dumps(given)]
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
            subprocess.run(
                command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
            )
            measured.append(json.loads(output.read_text("utf-8")))
    print(COLUMNS)
    for task, of_task in measured[0].items():
        print(compare(task, arguments.length, of_task, measured[1][task]))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        evaluate(json.loads(sys.argv[1]))
    else:
        main()
