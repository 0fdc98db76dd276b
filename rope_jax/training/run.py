"""Training a run, from its config to a run directory with checkpoints and metrics."""

import contextlib
import functools
import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from tensorboardX.summary import text

from rope_jax import stopping
from rope_jax.config.load import dump
from rope_jax.config.sections import DocumentsConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import describe_duration, print_message, print_overview
from rope_jax.data.batches import training_batch, validation_batches
from rope_jax.data.mix import mix_of
from rope_jax.data.storage import Corpus
from rope_jax.devices import processes
from rope_jax.devices.hardware import peak_flops, reached_flops
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.model.cost import flops_per_token
from rope_jax.report.scalings import describe_scaling
from rope_jax.report.table import yaml_block
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import Log, last_step
from rope_jax.session import Session, open_run
from rope_jax.training.checkpoints import Checkpoints, newest_step
from rope_jax.training.init_from import start_from
from rope_jax.training.loop import Trainer, TrainingProgress
from rope_jax.training.memory import check_size, compile_stages
from rope_jax.training.program import Program
from rope_jax.training.provenance import check_provenance, explain_other, provenance_of
from rope_jax.training.sweep import TrainingSweep


def train(config: TrainingConfig, console: Console) -> RunDirectory:
    """Train a run, or continue it from its newest undamaged checkpoint; return its directory.

    Raises UserError for bad input, a full disk, damage, or a loss that is not finite; Stopped if
    a signal ended it.
    """
    _check_config(config)
    run = RunDirectory(Path(config.runs_dir) / config.name)
    out_of_memory = (
        f"{run.path}: there is not enough memory; end other programs, and the same command "
        "continues from the newest checkpoint; or make the model smaller, under another name"
    )
    opened = open_run(
        run, config, console, distributed=config.distributed, out_of_memory=out_of_memory
    )
    with opened as session:
        _train(session)
    return run


def _train(session: Session) -> None:
    """Check everything that can be refused; only then create the run's folder, and train."""
    run, config = session.run, session.config
    newest = int(processes.broadcast_from_host0(lambda: str(newest_step(run.checkpoints))))
    explain = functools.partial(explain_other, session.recorded, step=newest)
    processes.on_first(lambda: run.check_available(session.recorded, explain))
    placement = Placement(config.mesh)
    placement.check_stages(config.stages)
    program = Program(config, session.tokenizer.vocab_size, placement)
    check_size(program)
    corpus = _checked_corpus(session)
    sweep = None if config.sweep is None else TrainingSweep(program, corpus, config.sweep)
    start = None
    if config.init_from is not None and not newest:
        start = start_from(config.init_from, program, corpus, session.warn)
    _compile_after(newest, program, corpus, session)
    with contextlib.ExitStack() as stack:
        # last: a failure above writes nothing
        prepared = run.prepared(session.recorded, session.tokenizer, explain)
        processes.on_first(lambda: stack.enter_context(prepared))
        processes.on_first(lambda: check_provenance(run, session.recorded, corpus))
        provenance = provenance_of(session.recorded, corpus)
        abstract_state = program.abstract_state
        checkpoints = Checkpoints(
            run.checkpoints, config.checkpoint.keep, provenance, abstract_state
        )
        stack.callback(checkpoints.close)
        done, state = checkpoints.restore_newest(abstract_state, session.warn)
        if done < newest:  # a checkpoint is damaged, and more stages are left
            _compile_after(done, program, corpus, session)

        def record() -> None:
            logged = last_step(run.metrics_file)
            # each save waits for the one before it, so a run without any cannot be past this
            if not done and logged > 2 * config.checkpoint.every_steps:
                raise UserError(
                    f"{run.checkpoints}: holds no checkpoint, and {run.metrics_file.name} has step "
                    f"{logged}; put the folder back, or delete the run to train it from the start"
                )
            if not done or run.recorded_corpus() is None:
                origin = None if start is None else start.origin
                run.write_environment(corpus.tokenizer.name, corpus, origin)

        processes.on_first(record)
        if done >= config.last_step:
            already = f"{run.path}: already trained to step {config.last_step}"
            print_message(session.console, already)
            return
        _announce(session, program, corpus, done)
        log = stack.enter_context(contextlib.closing(Log()))
        shown = yaml_block(dump(session.recorded))
        # a run that starts again repeats what was logged before its first step
        processes.on_first(lambda: log.open(run.path, done or -1).add(0, text("config", shown)))
        progress = TrainingProgress(session.console, config.last_step, done)
        trainer = Trainer(program, corpus, checkpoints, log, progress, sweep)
        began = time.perf_counter()
        stopping.check()
        if state is None:
            state = program.fresh_state() if start is None else start.state
        trainer.run(done, state)
        checkpoints.wait()
        minutes = (time.perf_counter() - began) / 60
        session.console.print(f"trained to step {config.last_step} in {minutes:.1f} minutes")
        if (loss := trainer.validation_loss) is not None:
            perplexity = math.exp(min(loss, 700))
            session.console.print(
                f"validation loss {loss:.4f} nats per token, perplexity {perplexity:.3f}"
            )


def _announce(session: Session, program: Program, corpus: Corpus, done: int) -> None:
    config, model = session.config, session.config.model
    peak, source = peak_flops()
    seconds = flops_after(done, config, program.vocab_size) / reached_flops(peak)
    positions: str = model.position.type
    if model.position.is_rotary:
        geometry = config.geometry
        positions += f": {geometry.rotary_dim // 2} pairs, base {geometry.base:,g}"
        positions += f", trained window L {geometry.train_length:,}"
    layers = f"{model.num_hidden_layers} layer{'s' * (model.num_hidden_layers != 1)}"
    rows = {
        "run": str(session.run.path),
        "model": f"{program.describe_parameters()}: {layers}, "
        f"width {model.hidden_size}, {model.num_attention_heads} heads of {model.heads_width}",
        "positions": positions,
        "devices": f"{session.describe_devices()}; peak {peak / 1e9:,.0f} GFLOP/s ({source})",
        "tokenizer": session.describe_tokenizer(),
        "corpus": corpus.report,
        **describe_training(config),
        "time": f"{describe_duration(seconds)}, compiling and validation not counted",
    }
    if done:
        rows["resumes"] = f"after step {done:,} of {config.last_step:,}"
    print_overview(session.console, f"training {config.name}", rows)


def describe_training(config: TrainingConfig) -> dict[str, str | list[str]]:
    """Describe the mix, the start and the stages of a run, by their names in its overview."""
    rows: dict[str, str | list[str]] = {}
    if mix := config.data.mix:
        rows["mix"] = ", ".join(f"{100 * task.share:g}% {task.task}" for task in mix)
    if config.init_from is not None:
        inherited = "weights and AdamW's moments" if config.init_from.optimizer else "weights"
        step = config.init_from.step or "of the newest checkpoint"
        rows["starts from"] = f"{config.init_from.run}, step {step}: {inherited}"
    for number, stage in enumerate(config.stages):
        lines = [
            f"{stage.steps:,} steps × {stage.batch_size:,} windows × {stage.seq_len:,} tokens = "
            f"{stage.steps * stage.batch_size * stage.seq_len:,} tokens"
        ]
        if config.model.position.is_rotary:
            scaling = config.stage_scaling(number)
            lines += describe_scaling(config.rotary_layers, scaling, stage.length)
        if (map_ := config.stage_map(number)) is not None:
            lines.append(f"map {map_.type}: {map_.settings_text}")
        if stage.positions.type != "plain":
            lines.append(f"{stage.positions.type} positions below {stage.length:,}")
        if (short := stage.mixed) is not None:
            lines.append(
                f"{short.rows_of(stage.batch_size)} of {stage.batch_size} rows: windows of "
                f"{short.seq_len} tokens, {short.scaling.type}"
            )
        if (documents := stage.documents) != DocumentsConfig():
            lines.append(f"documents: mask {documents.mask}, positions {documents.positions}")
        rows["training" if len(config.stages) == 1 else f"stage {number}"] = lines
    return rows


def _check_config(config: TrainingConfig) -> None:
    """UserError for what cannot be trained: an import, or weights in bfloat16.

    AdamW's steps are a thousandth of a weight or less, and bfloat16 would round them away.
    """
    if config.imported is not None:
        folder = Path(config.runs_dir) / config.name
        raise UserError(
            f"imported: {folder} is a checkpoint of {config.imported.model}, which is not trained "
            f"itself; start another run from it with init_from={folder}"
        )
    if config.model.param_dtype != "float32":
        raise UserError(
            f"model.param_dtype: {config.model.param_dtype} is for models that are not trained "
            "any more; training needs float32 (model.dtype=bfloat16 computes in 16 bits)"
        )


def _checked_corpus(session: Session) -> Corpus:
    """Open the texts. UserError now, not when training reaches it, if a stage's exceed them."""
    config, corpus = session.config, session.open_corpus()
    if not len(corpus.train):
        raise UserError(
            "data: there is nothing to train on, because this source has no train split; name "
            "another, or only sweep with it"
        )
    mix = mix_of(config.data.mix, corpus.tokenizer)
    for index, stage in enumerate(config.stages):
        if mix is not None:
            mix.check(stage.seq_len, index)
        one: Any = {"seq_len": stage.seq_len, "batch_size": 1}
        training_batch(corpus.train, seed=0, stage=index, step=0, **one)
        if len(corpus.validation):
            validation_batches(corpus.validation, batches=1, **one)
    return corpus


def _compile_after(done: int, program: Program, corpus: Corpus, session: Session) -> None:
    """Compile the stages that go on after step `done`. UserError if one needs too much memory."""
    if left := [span.number for span in program.config.spans if span.end > done]:
        validates = len(corpus.validation) > 0
        with session.console.status("compiling"):
            compile_stages(program, left, validates=validates, warn=session.warn)


def flops_after(done: int, config: TrainingConfig, vocab_size: int) -> float:
    """Return the FLOPs of the training steps after step `done`. vocab_size: the model's."""
    return sum(
        max(0, span.end - max(done, span.begin))
        * span.tokens_per_step
        * flops_per_token(config.model.spec(), vocab_size, span.stage.seq_len)
        for span in config.spans
    )
