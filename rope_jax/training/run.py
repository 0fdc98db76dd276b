"""Training a run: from a config to a run directory with checkpoints and metrics."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from rope_jax.attention import check_backend
from rope_jax.config.load import dump
from rope_jax.config.training import Config
from rope_jax.console import plain_console
from rope_jax.data.batches import training_batch, validation_batches
from rope_jax.data.storage import Corpus, open_corpus
from rope_jax.data.tokenizer import ByteTokenizer
from rope_jax.devices import processes
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import JsonLinesWriter, Log, TensorBoardWriter, last_step
from rope_jax.training.checkpoints import Checkpoints
from rope_jax.training.loop import Trainer


def train(config: Config, console: Console) -> RunDirectory:
    """Train, or go on from the newest whole checkpoint of the same run; returns its directory.

    Raises UserError for bad input, a full disk, damage, or a loss that is not finite; Stopped when
    a signal ended it. The same call goes on from what was saved.
    """
    with processes.joined(config.distributed):
        return _train(config, console)


def _train(config: Config, console: Console) -> RunDirectory:
    processes.check_same("config", dump(config.model_copy(update={"distributed": None})))
    check_backend(config.model)
    run = RunDirectory(Path(config.runs_dir) / config.name)
    processes.on_first(lambda: run.refuse_another(config))
    if not processes.is_first():
        console = plain_console(quiet=True)
    with console.status("opening the corpus (read and tokenised the first time)"):
        corpus = open_corpus(config.data, ByteTokenizer())
    processes.check_same("data", corpus.fingerprint)
    _check_texts(config, corpus)
    placement = Placement(config.mesh)
    placement.check(config.stages)
    trainer = Trainer(config, corpus, placement, console)
    placement.check_memory(trainer.abstract_state)
    processes.on_first(lambda: run.prepare(config))  # what fails above leaves nothing behind
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(run.release)
            checkpoints = Checkpoints(run.checkpoints, config.checkpoint.keep)
            stack.callback(checkpoints.close)
            say = functools.partial(console.print, style="yellow", highlight=False)
            done, state = checkpoints.restore_newest(trainer.abstract_state, tell=say)
            log = Log([], [])  # nowhere: the first process alone writes
            processes.on_first(
                lambda: log.extend(stack.enter_context(_open_log(run, config, corpus, done)))
            )
            trainer.run(done, state, checkpoints, log, run.path)
            checkpoints.wait()
    except OSError as error:
        raise UserError(
            f"{run.path}: cannot be written ({error.strerror or error}); mend that, and the same "
            "command goes on from the newest checkpoint"
        ) from error
    return run


@contextlib.contextmanager
def _open_log(run: RunDirectory, config: Config, corpus: Corpus, done: int) -> Iterator[Log]:
    """The run directory's writers, going on after step `done`."""
    if done:
        run.check_corpus(corpus)
    else:
        logged = last_step(run.metrics_file)
        # A second save waits for the first, so a run that was killed in its first is not past it.
        if logged > 2 * config.checkpoint.every_steps:
            raise UserError(
                f"{run.checkpoints}: holds no checkpoint, and {run.metrics_file.name} has step "
                f"{logged}; put the folder back, or delete the run to train it from the beginning"
            )
        run.write_environment(corpus)
    with contextlib.ExitStack() as stack:
        metrics = JsonLinesWriter(run.metrics_file, resume_step=done)
        stack.callback(metrics.close)
        throughput = JsonLinesWriter(run.throughput_file, resume_step=done)
        stack.callback(throughput.close)
        tensorboard = TensorBoardWriter(run.path, resume_step=done)
        stack.callback(tensorboard.close)
        tensorboard.text("config", f"```yaml\n{dump(config)}```")
        yield Log([metrics, tensorboard], [throughput, tensorboard])


def _check_texts(config: Config, corpus: Corpus) -> None:
    """Fail before the first step, not at the stage whose windows are too long."""
    for index, stage in enumerate(config.stages):
        training_batch(
            corpus.train, seed=0, stage=index, step=0, seq_len=stage.seq_len, batch_size=1
        )
        if len(corpus.validation):
            validation_batches(corpus.validation, seq_len=stage.seq_len, batch_size=1, batches=1)
