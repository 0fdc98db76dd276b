"""The training loop: stages, steps, validation, checkpoints."""

import functools
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field

import jax
import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn

from rope_jax import stopping
from rope_jax.config.sections import Span
from rope_jax.console import progress_bar, signed_text, time_left
from rope_jax.data.batches import (
    Batch,
    ShortRows,
    count_distances,
    training_batch,
    validation_batches,
)
from rope_jax.data.mix import mix_of
from rope_jax.data.storage import Corpus
from rope_jax.devices import processes
from rope_jax.devices.hardware import peak_flops
from rope_jax.errors import Stopped, UserError, shortage_as
from rope_jax.model.cost import flops_per_token
from rope_jax.model.decoder import Params
from rope_jax.runs.logs import Log, Scalars
from rope_jax.training.checkpoints import Checkpoints, newest_step
from rope_jax.training.memory import memory_advice
from rope_jax.training.optimizer import learning_rate
from rope_jax.training.program import Program
from rope_jax.training.step import (
    LossSums,
    StepMetrics,
    TrainState,
    distance_scalars,
    total,
    training_scalars,
    validation_scalars,
)
from rope_jax.training.sweep import TrainingSweep


class StepProgress:
    """Shows the steps done: while `bar` is entered a bar in a terminal, lines elsewhere."""

    def __init__(self, console: Console, total: int, done: int, title: str, now: str = "") -> None:
        self._console, self._total = console, total
        self.bar = progress_bar(console, MofNCompleteColumn)
        self._task = self.bar.add_task(title, total=total, completed=done, now=now)


class TrainingProgress(StepProgress):
    """Progress of training: losses, those of sweeps above truncation, and the time left."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        super().__init__(console, total, done, "training", "first step")
        self._training, self._validation = "", ""

    def trained(self, step: int, loss: float, tokens_per_second: float | None) -> None:
        self._training = f"loss {loss:.3f}"
        if tokens_per_second is not None:
            self._training += f", {tokens_per_second / 1e3:.1f}k tokens/s"
        self._show(step, self._training)

    def validated(self, step: int, loss: float) -> None:
        self._validation = f"validation {loss:.3f}"
        self._show(step, self._validation)

    def swept(self, step: int, scalars: Scalars) -> None:
        """Show a sweep: "sweep trained: −0.012 at 256, +0.104 at 512 nats above truncation"."""
        by_label = defaultdict[str, list[str]](list)
        for tag, above in scalars.items():
            _, label, quantity = tag.split("/")
            name, _, length = quantity.rpartition("_")
            if name == "above_truncation":
                by_label[label].append(f"{signed_text(above)} at {length}")
        for label, shown in by_label.items():
            line = f"sweep {label}: {', '.join(shown)} nats above truncation"
            self._console.print(f"step {step}/{self._total}  {line}")

    def _show(self, step: int, news: str) -> None:
        now = ", ".join(filter(None, (self._training, self._validation)))
        self.bar.update(self._task, completed=step, now=now)
        if self.bar.disable:  # print lines
            if news is self._training:
                news += time_left(self.bar.tasks[self._task])
            self._console.print(f"step {step}/{self._total}  {news}")


@dataclass
class Trainer:
    """Trains one run: its stages in order, with validation, logging and checkpoints.

    validation_loss: nats per token at the last validation.
    """

    program: Program
    corpus: Corpus
    checkpoints: Checkpoints
    log: Log
    progress: TrainingProgress
    sweep: TrainingSweep | None = None
    validation_loss: float | None = None
    # when the step under way began, unless it is the first one, which is not timed
    _began: float | None = None
    # times of the steps since the last one that was logged
    _seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config, self.placement = self.program.config, self.program.placement
        self._mix = mix_of(self.config.data.mix, self.corpus.tokenizer)
        # one program: computed operation by operation, each would be compiled by itself
        self._learning_rate = jax.jit(learning_rate(self.config))
        self._spans = self.config.spans

    def run(self, done: int, state: TrainState) -> TrainState:
        """Train after step `done`; return the last state. UserError: a loss is not finite."""
        with self.progress.bar:
            if not done:
                self._measure(0, self._spans[0], state.params)
            for span in self._spans:
                if span.end > done:
                    advice = (
                        f"stages[{span.number}]: there is not enough memory; end other programs, "
                        "and the same command continues from the newest checkpoint; or under "
                        f"another name {memory_advice(span.number)}"
                    )
                    with shortage_as(advice):
                        state = self._train_stage(span, max(done, span.begin), state)
        return state

    def _train_stage(self, span: Span, done: int, state: TrainState) -> TrainState:
        program = self.program.stages[span.number]
        self._began, self._seconds = None, []
        unread: tuple[int, StepMetrics] | None = None
        sweep = self.config.sweep
        for step in range(done + 1, span.end + 1):
            build = functools.partial(self._training_rows, span, step)
            batch = self.placement.batch(build, span.stage.batch_size)
            state, metrics = program.train_step(state, batch)
            # Read the previous metrics only after dispatching this step: the device never waits.
            if unread is not None:
                self._finish_step(span, *unread)
            unread = (step, metrics)
            stop_signal = self._stop_signal(step)
            validates = span.is_due(step, self.config.validation.every_steps)
            sweeps = sweep is not None and span.is_due(step, sweep.every_steps)
            saves = span.is_due(step, self.config.checkpoint.every_steps)
            if validates or sweeps or saves or stop_signal:
                # Log this step before saving it, because resuming starts after it.
                self._finish_step(span, *unread)
                unread = None
                if validates:
                    self._validate(span, step, state.params)
                if sweeps:
                    self._measure(step, span, state.params)
                if saves or stop_signal:
                    self.log.flush()
                    self.checkpoints.save(step, state)
                self._began = time.perf_counter()
            if stop_signal and step < self.config.last_step:
                self.checkpoints.wait()
                raise Stopped(
                    f"stopped after step {step} of {self.config.last_step}, which is saved; the "
                    "same command continues from there",
                    stop_signal,
                    together=True,
                )
        return state

    def _stop_signal(self, step: int) -> int:
        """Return the signal that asked to stop, or 0."""
        asked = stopping.requested() or 0
        if jax.process_count() == 1:
            return asked
        if step % self.config.log_every_steps:  # agreeing takes time
            return 0
        return (asked or signal.SIGTERM) if processes.any_host(bool(asked)) else 0

    def _finish_step(self, span: Span, step: int, metrics: StepMetrics) -> None:
        """Wait for a step and log it if it is due. UserError if its loss is not finite."""
        metrics, now = jax.device_get(metrics), time.perf_counter()
        if self._began is not None:
            self._seconds.append(now - self._began)
        self._began = now
        if not (np.isfinite(metrics.sums.nll).all() and np.isfinite(metrics.grad_norm)):
            loss, norm = float(metrics.sums.mean()), float(metrics.grad_norm)
            what = f"the loss is {loss:g} and the gradient's norm {norm:g}"
            raise self._diverged(step, what, "lengthen optim.warmup_steps")
        if span.is_due(step, self.config.log_every_steps):
            self._log_step(span, step, metrics)

    def _diverged(self, step: int, what: str, advice: str) -> UserError:
        saved = newest_step(self.checkpoints.directory)
        kept = f"the checkpoint of step {saved} is kept" if saved else "nothing was saved yet"
        return UserError(
            f"step {step}: {what}; training stops, and {kept}. Lower optim.learning_rate or "
            f"{advice}, and train under another name"
        )

    def _log_step(self, span: Span, step: int, metrics: StepMetrics) -> None:
        earlier = sum(s.stage.steps * s.tokens_per_step for s in self._spans[: span.number])
        scalars = training_scalars(
            metrics,
            learning_rate=float(self._learning_rate(step - 1)),
            tokens=earlier + (step - span.begin) * span.tokens_per_step,
            seq_len=span.stage.seq_len,
        )
        speed = None
        if self._seconds:
            speed, self._seconds = span.tokens_per_step / float(np.mean(self._seconds)), []
            about = self.program.model.spec, self.program.vocab_size, span.stage.seq_len
            mfu = speed * flops_per_token(*about) / peak_flops()[0]
            speeds = {"throughput/tokens_per_second": speed, "throughput/mfu": mfu}
            self.log.write(step, speeds, "throughput")
        if processes.is_first():  # which built only its own rows of the batch
            rows, length = slice(0, span.stage.batch_size), span.stage.length
            pairs = count_distances(self._training_rows(span, step, rows), length)
            scalars = {**scalars, **distance_scalars(pairs, length)}
        self.log.write(step, scalars)
        self.progress.trained(step, scalars["train/loss"], speed)

    def _validate(self, span: Span, step: int, params: Params) -> None:
        """Measure, log and show the validation loss, if the validation split has any text."""
        stage, program = span.stage, self.program.stages[span.number]
        if not len(self.corpus.validation):
            return
        batches = validation_batches(
            self.corpus.validation,
            seq_len=stage.seq_len,
            batch_size=stage.batch_size,
            batches=self.config.validation.batches,
            documents=stage.documents,
        )
        parts: list[LossSums] = []
        for batch in batches:

            def build(rows: slice, batch: Batch = batch) -> Batch:
                return Batch(*(leaf[rows] for leaf in batch))

            placed = self.placement.batch(build, stage.batch_size)
            parts.append(program.loss_sums(params, placed))
            # One batch is queued while another is computed: there is memory for two at a time, and
            # a signal can wait for no more.
            jax.block_until_ready(parts[-2:-1])
            stopping.requested()
        scalars = validation_scalars(total(parts), stage.seq_len)
        self.validation_loss = scalars["validation/loss"]
        if not np.isfinite(self.validation_loss):  # the last update, which no training loss shows
            what = f"the validation loss is {self.validation_loss:g}"
            raise self._diverged(step, what, "optim.weight_decay")
        self.log.write(step, scalars)
        self.progress.validated(step, self.validation_loss)

    def _measure(self, step: int, span: Span, params: Params) -> None:
        """Log and show the sweep, if the config asks for one."""
        if self.sweep is None:
            return
        with shortage_as("sweep: there is not enough memory; lower sweep.memory_gib"):
            scalars = self.sweep.measure(span.number, params)
        self.log.write(step, scalars)
        self.progress.swept(step, scalars)

    def _training_rows(self, span: Span, step: int, rows: slice) -> Batch:
        short, mixed = None, span.stage.mixed
        if mixed is not None:
            short = ShortRows(mixed.seq_len, mixed.rows_of(span.stage.batch_size))
        return training_batch(
            self.corpus.train,
            seed=self.config.seed,
            stage=span.number,
            step=step - 1 - span.begin,
            seq_len=span.stage.seq_len,
            batch_size=span.stage.batch_size,
            rows=rows,
            positions=span.stage.positions,
            documents=span.stage.documents,
            short=short,
            mix=self._mix,
        )
