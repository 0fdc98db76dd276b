"""Export runs together with what this package computes from them, for a check with transformers.

    python scripts/check_exports.py OUT RUN[=STRATEGY.json] [RUN …]
    /tmp/hf/bin/python scripts/golden_checkpoints.py --check OUT/*   # an environment with torch

Each run is exported to OUT/<name>, with the first tokens of a test document, twice as many as the
window (tokens.npy, text.txt), and their logits in float32 (logits.npy). Prints the NLL of the
protocol `sliding` on the same tokens, to compare with `golden_checkpoints.py --sliding`.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import TypeAdapter

from rope_jax.checkpoints.exporting import export_run
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.entries import AnyEntry
from rope_jax.config.strategy import read_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.console import plain_console
from rope_jax.evaluation.results import rows
from rope_jax.model.decoder import language_model
from rope_jax.model.resolve import resolve_run
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import Session
from rope_jax.sweeps.model import load_model
from rope_jax.sweeps.resolve import resolve_run_sweep
from rope_jax.training.checkpoints import newest_params

CONSOLE = plain_console(width=100)


def check(run: RunDirectory, strategy: str | None, out: Path) -> None:
    """Export a run to a new folder, with tokens, text and logits."""
    export_run(run, ExportConfig(strategy=strategy), out, CONSOLE)
    training = run.load_config()
    loaded = load_model(Session(run, training, CONSOLE))
    step, params = newest_params(run.checkpoints, loaded.memory.like, CONSOLE.print)
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
    if strategy is None:
        window, stride = stage.seq_len, stage.seq_len // 4
        covered = stream[: 1 + min(8, (len(stream) - 1) // window) * window]
        np.save(out / "sliding.npy", covered)
        trained = TypeAdapter(tuple[AnyEntry, ...]).validate_python(["trained"])
        config = SweepConfig(
            protocols=("sliding",), stride=stride, scalings=trained, bos="none", max_blocks=8
        )
        config = config.model_copy(update={"lengths": (window,)})
        plan = loaded.plan(resolve_run_sweep(config, training, [step]), [covered], step)
        result = loaded.measure(plan, params)
        nll = rows(result, loaded.origin(step))[0].nll
        print(
            f"{out.name}: --sliding --length {window} --stride {stride}: {nll:.6f} nats per token"
        )


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True)
    for argument in sys.argv[2:]:
        path, _, strategy = argument.partition("=")
        run = RunDirectory(Path(path))
        name = run.path.name + (f"-{Path(strategy).parent.name}" if strategy else "")
        check(run, strategy or None, out / name)


if __name__ == "__main__":
    main()
