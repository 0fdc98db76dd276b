"""Terminal output of a training run: an overview, the progress, the outcome."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import MofNCompleteColumn

from rope_jax.config.sections import DocumentsConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import (
    describe_duration,
    print_overview,
    print_warning,
    progress_bar,
    signed_text,
    time_left,
)
from rope_jax.report.scalings import describe_scaling
from rope_jax.runs.logs import Scalars


def announce(
    console: Console,
    config: TrainingConfig,
    folder: str,
    parameters: int,
    facts: Mapping[str, str | Sequence[str]],
    *,
    done: int,
    seconds: float,
) -> None:
    """Print an overview of a run after step `done`, with `facts` that its config does not hold.

    seconds: for the steps that are left.
    """
    model, geometry, stages = config.model, config.geometry, config.stages
    longest, first = 0, geometry.train_length
    positions: str = model.position.type
    if model.position.is_rotary:
        pairs = geometry.rotary_dim // 2
        positions += f": {pairs} pairs, base {geometry.base:,g}, trained window L {first:,}"
    layers = f"{model.num_hidden_layers} layer{'s' * (model.num_hidden_layers != 1)}"
    rows: dict[str, str | Sequence[str]] = {
        "run": folder,
        "model": f"{parameters:,} parameters: {layers}, width {model.hidden_size}, "
        f"{model.num_attention_heads} heads of {model.heads_width}",
        "positions": positions,
        **facts,
    }
    if mix := config.data.mix:
        rows["mix"] = ", ".join(f"{100 * task.share:g}% {task.task}" for task in mix)
    if config.init_from is not None:
        inherited = "weights and AdamW's moments" if config.init_from.optimizer else "weights"
        step = config.init_from.step or "of the newest checkpoint"
        rows["starts from"] = f"{config.init_from.run}, step {step}: {inherited}"
    for number, stage in enumerate(stages):
        scaling, map_ = config.stage_scaling(number), config.stage_map(number)
        if scaling.type == "none" and map_ is None:
            longest = max(longest, stage.seq_len)
        lines = [
            f"{stage.steps:,} steps × {stage.batch_size:,} windows × {stage.seq_len:,} tokens = "
            f"{stage.steps * stage.batch_size * stage.seq_len:,} tokens"
        ]
        if model.position.is_rotary:
            lines += describe_scaling(config.rotary_layers, scaling, stage.length)
        if map_ is not None:
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
        rows["training" if len(stages) == 1 else f"stage {number}"] = lines
    rows["time"] = f"{describe_duration(seconds)}, compiling and validation not counted"
    if done:
        rows["resumes"] = f"after step {done:,} of {config.last_step:,}"
    print_overview(console, f"training {config.name}", rows)
    if model.position.is_rotary and config.rope.train_length is None and longest > first:
        print_warning(
            console,
            f"rope.train_length: L is {first:,}, the first stage's seq_len, and windows of "
            f"{longest:,} tokens are trained without scaling too; yarn, logn and others count "
            f"from L: give rope.train_length={longest} if they should count from there",
        )


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
        by_label: dict[str, list[str]] = {}
        for tag, above in scalars.items():
            _, label, quantity = tag.split("/")
            if quantity.startswith("above_truncation_"):
                length = quantity.removeprefix("above_truncation_")
                by_label.setdefault(label, []).append(f"{signed_text(above)} at {length}")
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


def conclude(console: Console, step: int, minutes: float, validation_loss: float | None) -> None:
    """Print the outcome of training. validation_loss: the last one, nats per token."""
    console.print(f"trained to step {step} in {minutes:.1f} minutes")
    if validation_loss is not None:
        console.print(
            f"validation loss {validation_loss:.4f} nats per token, "
            f"perplexity {math.exp(min(validation_loss, 700)):.3f}"
        )
