"""Whether a run may go on under a config that differs from the one it began with."""

import re
from pathlib import Path

import jax
import numpy as np

from rope_jax.config.differences import different_keys
from rope_jax.config.training import Config
from rope_jax.training.optimizer import learning_rate

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
    different = [key for key in _different(new, old) if not key.startswith(but_for)]
    if any(not _PLANNED.fullmatch(key) for key in different):
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
    return begin >= step and _same_rates(new, old, step)


def _different(new: Config, old: Config) -> list[str]:
    """Return the keys that differ, but for the backend of a softmax attention."""
    backends = new.model.attention, old.model.attention
    free = () if "linear" in backends else ("model.attention",)
    return [key for key in different_keys(new, old) if key not in free]


def _same_rates(new: Config, old: Config, step: int) -> bool:
    steps = np.arange(step, dtype=np.float32)
    rates = [jax.vmap(learning_rate(config))(steps) for config in (new, old)]
    return bool(np.array_equal(*rates))


def explain_other(new: Config, old: Config, step: int) -> str | None:
    """Return why a run with another config cannot go on from a step, and what to do instead.

    None if it can.
    """
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
