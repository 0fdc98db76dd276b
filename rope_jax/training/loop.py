"""The training loop: stages, steps, validation, checkpoints."""

import functools
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rope_jax.config.training import Config, StageConfig
from rope_jax.console import facts, scaling_lines
from rope_jax.data.batches import Batch, training_batch, training_offsets, validation_batches
from rope_jax.data.storage import Corpus
from rope_jax.data.tokenizer import ByteTokenizer
from rope_jax.devices import processes
from rope_jax.devices.hardware import device_line
from rope_jax.devices.mesh import Placement
from rope_jax.devices.peak import peak_flops
from rope_jax.errors import Stopped, UserError
from rope_jax.model.cost import flops_per_token
from rope_jax.model.decoder import language_model
from rope_jax.rope import Rotary
from rope_jax.runs.logs import Log
from rope_jax.training.checkpoints import Checkpoints
from rope_jax.training.clock import Clock
from rope_jax.training.interruption import Interruption
from rope_jax.training.optimizer import learning_rate, optimizer
from rope_jax.training.step import (
    LossSums,
    TrainState,
    bucket_edges,
    fresh_state,
    loss_sums,
    make_train_step,
)


class Span(NamedTuple):
    """A stage, and the global steps begin < step ≤ end that it takes."""

    number: int
    stage: StageConfig
    begin: int
    end: int


def stage_spans(config: Config) -> list[Span]:
    """The stages, one after the other."""
    ends = np.cumsum([stage.steps for stage in config.stages]).tolist()
    return [
        Span(index, stage, end - stage.steps, end)
        for index, (stage, end) in enumerate(zip(config.stages, ends, strict=True))
    ]


class Trainer:
    """One run's parts, put together once."""

    def __init__(
        self, config: Config, corpus: Corpus, placement: Placement, console: Console
    ) -> None:
        self.config, self.corpus, self.placement = config, corpus, placement
        self.console = console
        self.model = language_model(config, ByteTokenizer.vocab_size)
        self.optimizer = optimizer(config)
        self.learning_rate = learning_rate(config)
        self.peak_flops, self.peak_source = peak_flops()
        self.spans = stage_spans(config)
        self.validation_loss: float | None = None

    @functools.cached_property
    def abstract_state(self) -> TrainState:
        """The state's shapes, dtypes and places."""
        return self.placement.of_state(jax.eval_shape(self._fresh_state))

    def _fresh_state(self) -> TrainState:
        return fresh_state(self.model, self.optimizer, self.config.seed)

    def run(
        self, done: int, state: TrainState | None, checkpoints: Checkpoints, log: Log, path: Path
    ) -> TrainState:
        """Train from the state after step `done` (None: from scratch) to the last stage's end."""
        self.checkpoints, self.log = checkpoints, log
        self.places = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)
        if state is None:
            state = jax.jit(self._fresh_state, out_shardings=self.places)()
        self._announce(state, done, path)
        total, start = self.spans[-1].end, time.perf_counter()
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        text = TextColumn("{task.fields[now]}")
        with (
            Interruption() as self.interruption,
            Progress(*columns, text, console=self.console) as bar,
        ):
            task = bar.add_task("", total=total, completed=done, now="compiling")

            def show(step: int, now: str) -> None:
                bar.update(task, completed=step, now=now)
                if not self.console.is_terminal:  # no bar to watch: a line now and then
                    self.console.print(f"step {step}/{total}  {now}", highlight=False)

            for span in self.spans:
                if span.end > done:
                    state = self._stage(span, max(done, span.begin), state, show)
        minutes = (time.perf_counter() - start) / 60
        took = f" in {minutes:.1f} minutes" if done < total else " before"
        self.console.print(f"trained to step {total}{took}", highlight=False)
        if self.validation_loss is not None:
            self.console.print(
                f"validation loss {self.validation_loss:.4f} nats a token, "
                f"perplexity {np.exp(self.validation_loss):.3f}",
                highlight=False,
            )
        return state

    def _stage(self, span: Span, start: int, state: TrainState, show: Any) -> TrainState:
        stage = span.stage
        scaling, layers = self.config.stage_scaling(span.number), self.config.rotary_layers
        rotary = Rotary.unscaled_queries(layers.frequencies(scaling, seq_len=stage.seq_len))
        # a document's positions begin at 0 wherever it stands in a window: known with the batch
        query_scales = None
        if layers.has_query_scale(scaling):
            query_scales = functools.partial(layers.query_scale, scaling)
        train_step = make_train_step(
            self.model,
            self.optimizer,
            stage.grad_accumulation,
            (self.places, self.placement.everywhere),
            query_scales,
        )
        sums = jax.jit(
            functools.partial(loss_sums, self.model, query_scales=query_scales),
            out_shardings=self.placement.everywhere,
        )
        clock = Clock(stage.batch_size * stage.seq_len)
        unread: tuple[int, dict[str, Any]] | None = None
        for step in range(start + 1, span.end + 1):
            build = functools.partial(self._training_batch, span, step)
            batch = self.placement.batch(build, stage.batch_size)
            state, metrics = train_step(state, batch, rotary)
            # Read the step before, now that this one is under way: the device never waits.
            if unread is not None:
                self._read(span, *unread, clock, show)
            unread = (step, metrics)
            last = step == span.end
            stops = self._asked_to_stop(step)
            saves = last or stops or step % self.config.checkpoint.every_steps == 0
            validates = last or step % self.config.validation.every_steps == 0
            if saves or validates:
                # What a checkpoint covers must be logged before it: resuming starts after it. And
                # this step is not to be waited for while the clock stands still.
                self._read(span, *unread, clock, show)
                unread = None
            with clock.stopped():
                if validates and len(self.corpus.validation):
                    self._validate(stage, step, lambda b, p=state.params: sums(p, b, rotary))
                if saves:
                    self.log.flush()
                    self.checkpoints.save(step, state)
            if stops and step < self.spans[-1].end:
                self.checkpoints.wait()
                raise Stopped(
                    f"stopped after step {step} of {self.spans[-1].end}, which is saved; the same "
                    "command goes on from there",
                    stops,
                    together=True,
                )
        return state

    def _training_batch(self, span: Span, step: int, rows: slice) -> Batch:
        return training_batch(
            self.corpus.train,
            seed=self.config.seed,
            stage=span.number,
            step=step - 1 - span.begin,
            seq_len=span.stage.seq_len,
            batch_size=span.stage.batch_size,
            rows=rows,
        )

    def _asked_to_stop(self, step: int) -> int:
        """The signal that asked for it, or 0. Several processes agree, now and then: it costs."""
        asked = self.interruption.signal or 0
        if jax.process_count() == 1:
            return asked
        if step % self.config.log_every_steps:
            return 0
        return (asked or signal.SIGTERM) if processes.any_of(bool(asked)) else 0

    def _read(
        self, span: Span, step: int, metrics: dict[str, Any], clock: "Clock", show: Any
    ) -> None:
        """Wait for a step; log it if it is one to log."""
        metrics = jax.device_get(metrics)
        clock.tick()
        sums: LossSums = metrics["sums"]
        if not (np.isfinite(sums.nll).all() and np.isfinite(metrics["grad_norm"])):
            raise UserError(self._not_finite(span, step, sums, metrics["grad_norm"]))
        if step % self.config.log_every_steps and step != span.end:
            return
        earlier = sum(
            s.stage.steps * s.stage.batch_size * s.stage.seq_len for s in self.spans[: span.number]
        )
        values = {
            "train/loss": float(sums.mean()),
            "train/grad_norm": float(metrics["grad_norm"]),
            "train/learning_rate": float(self.learning_rate(step - 1)),
            "train/tokens": earlier + (step - span.begin) * clock.tokens_per_step,
            **_by_position(
                "train_loss_at", sums.nll / np.maximum(sums.tokens, 1), span.stage.seq_len
            ),
            **_by_position("tokens_at", sums.tokens / sums.tokens.sum(), span.stage.seq_len),
        }
        now = f"loss {values['train/loss']:.3f}"
        if speed := clock.tokens_per_second():
            flops = flops_per_token(self.config.model, self.model.vocab_size, span.stage.seq_len)
            timed = {
                "throughput/tokens_per_second": speed,
                "throughput/mfu": speed * flops / self.peak_flops,
            }
            for writer in self.log.timed:
                writer.scalars(step, timed)
            now += f", {speed / 1e3:.1f}k tokens/s"
        self._write(step, values)
        if self.validation_loss is not None:
            now += f", validation {self.validation_loss:.3f}"
        show(step, now)

    def _not_finite(self, span: Span, step: int, sums: LossSums, grad_norm: Any) -> str:
        index, seq_len = step - 1 - span.begin, span.stage.seq_len
        windows = training_offsets(
            self.corpus.train,
            self.config.seed,
            span.number,
            index,
            seq_len,
            span.stage.batch_size,
        )
        saved = self.checkpoints.steps()
        kept = f"the checkpoint of step {saved[0]} is kept" if saved else "nothing was saved yet"
        return (
            f"step {step}: the loss is {float(sums.mean()):g} and the gradient's norm "
            f"{float(grad_norm):g}; training stops, and {kept}. The batch: stage {span.number}, "
            f"step {index} of it, windows of {seq_len} tokens from train token "
            f"{', '.join(map(str, windows[:4]))}{'…' if len(windows) > 4 else ''}. Lower "
            "optim.learning_rate, lengthen optim.warmup_steps or mend those texts, under another "
            "name"
        )

    def _validate(self, stage: StageConfig, step: int, sums_of: Any) -> None:
        batches = validation_batches(
            self.corpus.validation,
            seq_len=stage.seq_len,
            batch_size=stage.batch_size,
            batches=self.config.validation.batches,
        )
        place = functools.partial(self.placement.batch, rows=stage.batch_size)
        parts = [sums_of(place(functools.partial(_rows, batch))) for batch in batches]
        total: LossSums = jax.tree.map(
            lambda *leaves: np.sum(leaves, axis=0, dtype=np.float64), *parts
        )
        self.validation_loss = float(total.mean())
        by_position = total.nll / np.maximum(total.tokens, 1)
        self._write(
            step,
            {
                "validation/loss": self.validation_loss,
                **_by_position("validation_loss_at", by_position, stage.seq_len),
            },
        )

    def _write(self, step: int, values: dict[str, float]) -> None:
        for writer in self.log.exact:
            writer.scalars(step, values)

    def _announce(self, state: TrainState, done: int, path: Path) -> None:
        """Say what will happen before it does."""
        config, model = self.config, self.config.model
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        tokens = sum(s.steps * s.batch_size * s.seq_len for s in config.stages)
        rows: dict[str, str | list[str]] = {
            "run directory": str(path),
            "model": f"{parameters:,} parameters: {model.num_hidden_layers} layers, width "
            f"{model.hidden_size}, {model.num_attention_heads} heads of {model.heads_width}",
            "devices": device_line(model.dtype),
            "peak": f"{self.peak_flops / 1e9:,.0f} GFLOP/s ({self.peak_source})",
            "corpus": list(self.corpus.report),
            "training": f"{tokens:,} tokens",
        }
        geometry = config.geometry
        rows["rotary"] = (
            f"{geometry.rotary_dim} dimensions, base {geometry.base:g}, L {geometry.train_length}"
        )
        for span in self.spans:
            stage, scaling = span.stage, config.stage_scaling(span.number)
            rows[f"stage {span.number}"] = [
                f"{stage.steps} steps × {stage.batch_size} windows × {stage.seq_len} tokens",
                *scaling_lines(config.rotary_layers, scaling, stage.seq_len),
            ]
        if done:
            rows["resumes"] = f"after step {done} of {self.spans[-1].end}"
        facts(self.console, f"training {config.name}", rows)


def _rows(batch: Batch, rows: slice) -> Batch:
    return Batch(*(leaf[rows] for leaf in batch))


def _by_position(name: str, values: Any, seq_len: int) -> dict[str, float]:
    edges = [*bucket_edges(seq_len), seq_len]
    return {
        f"{name}/{first}-{end - 1}": float(value)
        for first, end, value in zip(edges[:-1], edges[1:], values, strict=True)
    }
