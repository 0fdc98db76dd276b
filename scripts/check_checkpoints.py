"""Compare checkpoints with what transformers computes.

    python scripts/check_checkpoints.py families && make generate
    python scripts/check_checkpoints.py exports OUT RUN[=STRATEGY.json] [RUN …]
    /tmp/hf/bin/python scripts/golden_checkpoints.py --check OUT/*   # an environment with torch

families: compares every family with the golden logits of transformers, and writes
docs/families.csv: how many tiny models were compared (`tests/checkpoints/golden/`), the worst
difference of a logit, and which of them cannot be exported again. The columns `models`, `decoder`
and `refused` are written by hand; a new family gets an empty row.

exports: exports each run to OUT/<name>, with the first tokens of a test document, twice as many as
the window (tokens.npy, text.txt), and their logits in float32 (logits.npy).
"""

import csv
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from rope_jax.checkpoints.exporting import describe, export_run
from rope_jax.checkpoints.families import FAMILIES
from rope_jax.checkpoints.reading import read_description
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.strategy import read_strategy
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import Session
from rope_jax.sweeps.model import load_model
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


def export_checked(run: RunDirectory, strategy: str | None, out: Path) -> None:
    """Export a run to a new folder, with tokens, text and logits."""
    console = plain_console(width=100)
    export_run(run, ExportConfig(strategy=strategy), out, console)
    training = run.load_config()
    loaded = load_model(Session(run, training, console))
    step, params = newest_params(run.checkpoints, loaded.memory.like, console.print)
    stage = training.stages[training.stage_at(step)]
    tokenizer = loaded.corpus.tokenizer
    start = tokenizer.bos_ids
    document = max(loaded.corpus.test.texts(), key=len)
    stream = np.concatenate([start, document]).astype(np.int32)
    tokens = stream[: 2 * stage.length]
    length = len(tokens)
    scaling = training.stage_scaling(training.stage_at(step))
    if strategy is not None:
        scaling = read_strategy(strategy).scaling
    positions = jnp.arange(length)[None]
    rotary = training.rotary_layers.rotary(scaling, positions, length)

    in_float32 = {"dtype": "float32", "param_dtype": "float32"}
    exact_config = training.model_copy(
        update={"model": training.model.model_copy(update=in_float32)}
    )
    model = language_model(resolve_run(exact_config), tokenizer.vocab_size)

    @jax.jit
    def logits(params: Any, tokens: Any, rotary: Any) -> Any:
        hidden, _ = model.hidden_states(params, tokens, positions, None, rotary)
        tied = training.model.tie_word_embeddings
        kernel = params["embed_tokens"]["embedding"].T if tied else params["lm_head"]["kernel"]
        out = hidden @ kernel + params.get("lm_head", {}).get("bias", jnp.zeros(1))[None]
        cap = training.model.logit_softcap
        return out if cap is None else cap * jnp.tanh(out / cap)

    exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    np.save(out / "logits.npy", np.asarray(logits(exact, jnp.asarray(tokens[None]), rotary)))
    np.save(out / "tokens.npy", tokens)
    (out / "text.txt").write_bytes(tokenizer.decode(tokens[len(start) :]).encode())


def main() -> None:
    what, *words = sys.argv[1:] or [""]
    if what == "families":
        check_families()
    elif what == "exports" and len(words) > 1:
        out = Path(words[0])
        out.mkdir(parents=True)
        for argument in words[1:]:
            path, _, strategy = argument.partition("=")
            run = RunDirectory(Path(path))
            name = run.path.name + (f"-{Path(strategy).parent.name}" if strategy else "")
            export_checked(run, strategy or None, out / name)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
