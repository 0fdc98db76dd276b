"""What metrics.jsonl lacks when a run is continued: its lines were cut off, deleted or damaged."""

import itertools
from collections.abc import Iterator, Sequence

from rope_jax.config.training import Config
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import logged_steps
from rope_jax.training.loop import stage_spans
from rope_jax.training.sweep import sweep_tag


def describe_gaps(run: RunDirectory, config: Config, done: int, has_validation: bool) -> str | None:
    """Return one line that names the steps missing from metrics.jsonl up to `done`; None if none.

    has_validation: whether the validation split has any text.
    """
    if not done:
        return None
    parts = [("train/loss", config.log_every_steps, 1)]
    parts += [("validation/loss", config.validation.every_steps, 1)] * has_validation
    if config.sweep is not None:
        window = config.sweep_window  # always measured, unless the model cannot read that far
        if window <= (config.encoding.longest or window):
            tag = sweep_tag(config.sweep.scalings[0], "nll", window)
            parts.append((tag, config.sweep.every_steps, 0))
    missing = []
    for name, every_steps, first in parts:
        logged = logged_steps(run.metrics_file, name)
        steps = itertools.chain([0] * (first == 0), _due_steps(config, every_steps))
        due = list(itertools.takewhile(lambda s: s <= done, steps))
        if absent := [step for step in due if step not in logged]:
            missing.append(f"{name} of {len(absent)} of {len(due)} steps ({_list(absent)})")
    if not missing:
        return None
    return (
        f"{run.metrics_file}: lacks {' and '.join(missing)}, which this run has trained: the file "
        "was cut, deleted or damaged; the parameters are not affected, and TensorBoard's event "
        "files may still hold the values"
    )


def _due_steps(config: Config, every_steps: int) -> Iterator[int]:
    """Yield the steps at which something is logged: every so many, and the last of each stage."""
    for span in stage_spans(config):
        first = span.begin - span.begin % every_steps + every_steps
        yield from range(first, span.end, every_steps)
        yield span.end


def _list(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 3 else f"{steps[0]} to {steps[-1]}"
