"""Whether a run may go on: configs that differ from the one it began with, and gaps in its log."""

import re
from pathlib import Path

import jax
import numpy as np

from rope_jax.config.differences import different_keys
from rope_jax.config.training import Config
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import logged_steps
from rope_jax.training.optimizer import learning_rate
from rope_jax.training.sweep import sweep_tag

# Keys that say how long the stages are and which learning rate they have.
_PLANNED = re.compile(r"optim\.warmup_steps|stages\..*")
_STEPS = re.compile(r"stages\.\d+\.steps")


def same_until(new: Config, old: Config, step: int, *, but_for: tuple[str, ...] = ()) -> bool:
    """Whether the first `step` steps of two configs are the same: windows and learning rates.

    Then the checkpoint of that step belongs to both. Configs may differ in what comes after it:
    steps of the last stage, or stages that follow, where the schedule of the learning rate allows
    it. A schedule that decays to its last step does not: another number of steps changes it all.

    but_for: beginnings of keys that may differ besides.
    """
    different = (key for key in _different(new, old) if not key.startswith(but_for))
    if not all(map(_PLANNED.fullmatch, different)):
        return False
    begin = 0
    for one, other in zip(new.stages, old.stages, strict=False):
        if begin >= step:
            break
        # `learning_rate` is compared as a number for every step
        settings = {"steps": 1, "learning_rate": None}
        if one.model_copy(update=settings) != other.model_copy(update=settings):
            return False
        if min(begin + one.steps, step) != min(begin + other.steps, step):
            return False
        begin += one.steps
    if begin < step:
        return False
    steps = np.arange(step, dtype=np.float32)
    return bool(np.array_equal(*(jax.vmap(learning_rate(c))(steps) for c in (new, old))))


def _different(new: Config, old: Config) -> list[str]:
    """Return the keys that differ, but for the backend of a softmax attention."""
    same = new.model.backend.is_softmax and old.model.backend.is_softmax
    free = ("model.attention",) if same else ()
    return [key for key in different_keys(new, old) if key not in free]


def explain_other(new: Config, old: Config, step: int) -> str | None:
    """Return why a run with another config cannot go on from a step; None if it can."""
    different = _different(new, old)
    if not different or (step and same_until(new, old, step)):
        return None
    if not all(_STEPS.fullmatch(key) for key in different):
        return "give this one another name, or delete that folder"
    steps, planned = (sum(stage.steps for stage in config.stages) for config in (new, old))
    if steps < step:
        return f"it has been trained to step {step:,} already"
    if step and len(old.stages) == 1:
        warmup = old.optim.warmup(planned)
        optim = new.optim.model_copy(update={"warmup_steps": warmup})
        if same_until(new.model_copy(update={"optim": optim}), old, step):
            return f"with the warm-up that it had, optim.warmup_steps={warmup}, it goes on"
    return (
        f"its learning rate is planned for {planned:,} steps ({old.optim.schedule}), and {steps:,} "
        "would change the steps it has trained; keep them and give its config another stage, with "
        "a learning_rate of its own, or start a new run: name=NEW "
        f"init_from={Path(new.runs_dir) / new.name}"
    )


def describe_gaps(run: RunDirectory, config: Config, done: int, has_validation: bool) -> str | None:
    """Return one line that names the steps missing from metrics.jsonl up to `done`; None if none.

    has_validation: whether the validation split has any text.
    """
    if not done:
        return None
    due = {"train/loss": _due_steps(config, config.log_every_steps, done)}
    if has_validation:
        due["validation/loss"] = _due_steps(config, config.validation.every_steps, done)
    window = config.sweep_window  # always measured, unless the model cannot read that far
    if config.sweep is not None and window <= (config.encoding.longest or window):
        tag = sweep_tag(config.sweep.scalings[0], "nll", window)
        due[tag] = [0, *_due_steps(config, config.sweep.every_steps, done)]
    missing = []
    for name, steps in due.items():
        logged = logged_steps(run.metrics_file, name)
        if absent := [step for step in steps if step not in logged]:
            shown = f"{absent[0]} to {absent[-1]}"
            if len(absent) <= 3:
                shown = ", ".join(map(str, absent))
            missing.append(f"{name} of {len(absent)} of {len(steps)} steps ({shown})")
    if not missing:
        return None
    return (
        f"{run.metrics_file}: lacks {' and '.join(missing)}, which this run has trained: the file "
        "was cut, deleted or damaged; the parameters are not affected, and TensorBoard's event "
        "files may still hold the values"
    )


def _due_steps(config: Config, every_steps: int, done: int) -> list[int]:
    """Return the steps up to `done` at which something is logged."""
    return [
        step
        for span in config.spans
        for step in range(span.begin + 1, min(span.end, done) + 1)
        if span.is_due(step, every_steps)
    ]
