"""Compare checkpoints with what transformers and llama.cpp compute.

    python scripts/check_checkpoints.py families && make generate
    python scripts/check_checkpoints.py exports OUT RUN[=STRATEGY.json] [RUN …]
    /tmp/hf/bin/python scripts/golden_checkpoints.py --check OUT/*   # an environment with torch
    python scripts/check_checkpoints.py llama.cpp BUILD/bin/llama-perplexity \\
        RUN[=STRATEGY.json] TEXT.txt LENGTH copy|f32|f16|bf16|q8_0 […]

families: compares every family with the golden logits of transformers, and writes
docs/families.csv: how many tiny models were compared (`tests/checkpoints/golden/`), the worst
difference of a logit, and which of them cannot be exported again. The columns `models`, `decoder`
and `refused` are written by hand; a new family gets an empty row.

exports: exports each run to OUT/<name>, with the beginning of a test document, twice as long as the
window, in text.txt, and nll.npz: its tokens and the NLL of each next one, in float32. llama.cpp:
exports a run to a GGUF file of each type, and prints the NLL of the second half of a window.
"""

import csv
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from rope_jax.checkpoints.describing import describe
from rope_jax.checkpoints.exporting import export_run
from rope_jax.checkpoints.families import FAMILIES
from rope_jax.checkpoints.reading import read_description
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.strategy import read_strategy
from rope_jax.console import plain_console
from rope_jax.data.storage import open_corpus
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import nll_of_last
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.checkpoints import newest_params
from tests.checkpoints.cases import read_cases
from tests.checkpoints.folders import config_of, logit_differences

FILE = Path(__file__).parents[1] / "docs/families.csv"


def kept_back(family: str) -> str:
    """Return the names of the tiny models that no family of transformers can express, with why."""
    reasons = []
    for case in read_cases(family):
        config = config_of(read_description(json.loads(case.config), "config.json"))
        try:
            length = config.stages[0].length
            describe(config, config.rope.scaling, length, config.model.vocab_size or 0, family)
        except UserError as error:
            reasons.append(f"{case.name}: {error}")
    return "; ".join(reasons)


def check_families() -> None:
    """Compare the golden models of every family, and write docs/families.csv."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = {row["model_type"]: row for row in csv.DictReader(file)}
    made = []
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            worst = max(each for *_, each in logit_differences(family, Path(folder)))
        row = rows.get(family, dict.fromkeys(("models", "decoder", "refused"), ""))
        row |= {
            "model_type": family,
            "compared": str(len(read_cases(family))),
            "worst": f"{worst:.1e}",
        }
        made.append(row | {"not_exported": kept_back(family)})
        print(f"{family:16} {row['compared']:>3} models, {worst:.1e}  {made[-1]['not_exported']}")
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(made[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(made)


def nll_of(run: RunDirectory, strategy: str | None, tokens: NDArray[np.int32]) -> NDArray[Any]:
    """Return the NLL of every token but the first, of a run's newest checkpoint in float32."""
    training, in_float32 = run.load_config(), {"dtype": "float32", "param_dtype": "float32"}
    scaling = training.stage_scaling(len(training.stages) - 1)
    scaling = scaling if strategy is None else read_strategy(strategy).scaling
    exact = training.model_copy(update={"model": training.model.model_copy(update=in_float32)})
    model = language_model(resolve_run(exact), run.open_tokenizer(training).vocab_size)
    placement, length = Placement(training.mesh), len(tokens) - 1
    abstract_params = placement.splitting(model.shardings).shard_state(model.abstract_params())
    _, params = newest_params(run.checkpoints, abstract_params, print)
    rotary = training.rotary_layers.rotary(scaling, np.arange(length)[None], length)
    nll = nll_of_last(model, placement)(params, jnp.asarray(tokens[None]), rotary, None)
    return np.asarray(nll)[0]


def check_export(run: RunDirectory, strategy: str | None, out: Path) -> None:
    """Export a run to a new folder, with what it computes for the longest test document."""
    export_run(run, ExportConfig(strategy=strategy), out, plain_console(width=100))
    training = run.load_config()
    tokenizer = run.open_tokenizer(training)
    document = max(open_corpus(training.data, tokenizer).test.texts(), key=len)
    length = min(2 * training.stages[-1].length, len(document))
    text = tokenizer.decode(document[: length + 1 - len(tokenizer.bos_ids)])
    (out / "text.txt").write_bytes(text.encode())
    tokens = np.array([*tokenizer.bos_ids, *tokenizer.encode(text)], np.int32)
    nll = nll_of(run, strategy, tokens)
    arrays: dict[str, Any] = {"tokens": tokens, str(nll.size): nll}
    np.savez(out / "nll.npz", **arrays)


def check_llama_cpp(
    perplexity: str, run: RunDirectory, strategy: str | None, text: Path, length: int, outtype: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, given = Path(folder) / "model.gguf", None if outtype == "copy" else outtype
        config = ExportConfig.model_validate({"strategy": strategy, "outtype": given})
        export_run(run, config, file, plain_console(quiet=True))
        # its caches are of float16 otherwise; the last chunk may be missing in what it prints
        words = f"-c {length} -b {length} --chunks 2 -ctk f32 -ctv f32 -fa off".split()
        command = [perplexity, "-m", str(file), "-f", str(text), *words]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (theirs,) = re.findall(r"\[1\]([\d.]+),", said)
    tokenizer = run.open_tokenizer(run.load_config())
    ids = [*tokenizer.bos_ids, *tokenizer.encode(text.read_bytes().decode())]
    ours = nll_of(run, strategy, np.array(ids[:length], np.int32))[length // 2 :].mean()
    print(
        f"{run.path.name}, {outtype}: {math.log(float(theirs)):.5f} in llama.cpp, {ours:.5f} here"
    )


def main() -> None:
    what, *words = sys.argv[1:] or [""]
    if what == "families":
        check_families()
    elif what == "exports" and len(words) > 1:
        for argument in words[1:]:
            path, _, strategy = argument.partition("=")
            name = Path(path).name + (f"-{Path(strategy).parent.name}" if strategy else "")
            check_export(RunDirectory(Path(path)), strategy or None, Path(words[0]) / name)
    elif what == "llama.cpp" and len(words) > 4:
        path, _, strategy = words[1].partition("=")
        given = RunDirectory(Path(path)), strategy or None, Path(words[2]), int(words[3])
        for outtype in words[4:]:
            check_llama_cpp(words[0], *given, outtype)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
