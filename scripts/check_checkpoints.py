"""Compare checkpoints with what transformers computes.

    python scripts/check_checkpoints.py families && make generate
    python scripts/check_checkpoints.py exports OUT RUN[=STRATEGY.json] [RUN …]
    python scripts/check_checkpoints.py gguf OUT MODEL.gguf TEXT.txt LENGTH [LENGTH …]
    /tmp/hf/bin/python scripts/golden_checkpoints.py --check OUT/*   # an environment with torch

families: compares every family with the golden logits of transformers, and writes
docs/families.csv: how many tiny models were compared (`tests/checkpoints/golden/`), the worst
difference of a logit, and which of them cannot be exported again. The columns `models`, `decoder`
and `refused` are written by hand; a new family gets an empty row.

exports: exports each run to OUT/<name>, with the beginning of a test document, twice as long as the
window. gguf: imports a GGUF file to OUT/runs, and links it in OUT/<name>. Beside each is text.txt
and nll.npz: its tokens, and by length the NLL of each next one, in float32.
"""

import csv
import json
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from rope_jax.checkpoints.describing import describe
from rope_jax.checkpoints.exporting import export_run
from rope_jax.checkpoints.families import FAMILIES
from rope_jax.checkpoints.importing import import_checkpoint
from rope_jax.checkpoints.reading import read_description
from rope_jax.config.checkpoints import ExportConfig, ImportConfig
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.config.strategy import read_strategy
from rope_jax.console import plain_console
from rope_jax.data.storage import open_corpus
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import nll_of_last
from rope_jax.rope import Scaling
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


def write_nlls(
    run: RunDirectory, scaling: Scaling, tokens: NDArray[np.int32], lengths: list[int], out: Path
) -> None:
    """Write nll.npz for the newest checkpoint of a run, which is read in float32."""
    training = run.load_config()
    in_float32 = {"dtype": "float32", "param_dtype": "float32"}
    exact = training.model_copy(update={"model": training.model.model_copy(update=in_float32)})
    model = language_model(resolve_run(exact), run.open_tokenizer(training).vocab_size)
    placement = Placement(training.mesh)
    abstract_params = placement.splitting(model.shardings).shard_state(model.abstract_params())
    _, params = newest_params(run.checkpoints, abstract_params, print)
    of_last = nll_of_last(model, placement)
    nlls = {}
    for length in lengths:
        rotary = training.rotary_layers.rotary(scaling, np.arange(length)[None], length)
        nll = of_last(params, jnp.asarray(tokens[None, : length + 1]), rotary, None)
        nlls[str(length)] = np.asarray(nll)[0]
        print(f"{out}, {length:,} tokens: {nlls[str(length)].mean():.5f} nats per token")
    np.savez(out / "nll.npz", tokens=tokens, **nlls)


def check_export(run: RunDirectory, strategy: str | None, out: Path) -> None:
    """Export a run to a new folder, with what it computes for the longest test document."""
    export_run(run, ExportConfig(strategy=strategy), out, plain_console(width=100))
    training = run.load_config()
    last = len(training.stages) - 1
    scaling = training.stage_scaling(last) if strategy is None else read_strategy(strategy).scaling
    tokenizer = run.open_tokenizer(training)
    document = max(open_corpus(training.data, tokenizer).test.texts(), key=len)
    length = min(2 * training.stages[last].length, len(document))
    text = tokenizer.decode(document[: length + 1 - len(tokenizer.bos_ids)])
    (out / "text.txt").write_bytes(text.encode())
    tokens = np.array([*tokenizer.bos_ids, *tokenizer.encode(text)], np.int32)
    write_nlls(run, scaling, tokens, [len(tokens) - 1], out)


def check_gguf(out: Path, model: Path, text: Path, lengths: list[int]) -> None:
    """Import a GGUF file, and write what it computes for the beginnings of a text."""
    settings = ImportConfig(runs_dir=str(out / "runs"), param_dtype="float32", dtype="float32")
    run = import_checkpoint(str(model), settings, plain_console())
    training, folder = run.load_config(), out / model.stem
    folder.mkdir()
    (folder / model.name).symlink_to(model.resolve())
    (folder / "text.txt").write_bytes(text.read_bytes())
    tokenizer = run.open_tokenizer(training)
    ids = [*tokenizer.bos_ids, *tokenizer.encode(text.read_bytes().decode())]
    write_nlls(run, training.rope.scaling, np.array(ids, np.int32), lengths, folder)


def main() -> None:
    what, *words = sys.argv[1:] or [""]
    if what == "families":
        check_families()
    elif what == "exports" and len(words) > 1:
        for argument in words[1:]:
            path, _, strategy = argument.partition("=")
            run = RunDirectory(Path(path))
            name = run.path.name + (f"-{Path(strategy).parent.name}" if strategy else "")
            check_export(run, strategy or None, Path(words[0]) / name)
    elif what == "gguf" and len(words) > 3:
        out, model, text = map(Path, words[:3])
        check_gguf(out, model, text, [int(word) for word in words[3:]])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
