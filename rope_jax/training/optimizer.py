"""The optimizer: AdamW with clipping, weight decay on matrices only, and its schedule."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from rope_jax.config.sections import OptimConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.training.trainable import LORA_A, LORA_B


def learning_rate(config: TrainingConfig) -> optax.Schedule:
    """Return the learning rate as a function of the global step, over all stages.

    A schedule starts at the first stage and at every stage with its own learning_rate, and lasts
    until the next such stage: linear warm-up from 0, at its first step, to the peak, then decay.
    wsd has its final rate at the last step; linear and cosine would have theirs one step later.
    """
    schedules, boundaries, end = [], [], 0
    for first, last in config.schedule_spans():
        steps = sum(stage.steps for stage in config.stages[first:last])
        peak = config.stages[first].learning_rate or config.optim.learning_rate
        schedules.append(_one_schedule(config.optim, peak, steps))
        end += steps
        boundaries.append(end)
    return optax.join_schedules(schedules, boundaries[:-1])


def optimizer(config: TrainingConfig) -> optax.GradientTransformation:
    """Return AdamW (arXiv 1711.05101) on gradients clipped by their global norm."""
    optim, rate = config.optim, learning_rate(config)
    adamw = optax.adamw(
        rate, optim.b1, optim.b2, optim.eps, weight_decay=optim.weight_decay, mask=decayed
    )
    return optax.chain(optax.clip_by_global_norm(optim.clip_norm), adamw)


def with_new_schedule(opt_state: optax.OptState) -> optax.OptState:
    """Return the state of `optimizer` at the beginning of its schedule, AdamW's moments kept."""
    state: optax.OptState = optax.tree.set(
        opt_state,
        lambda path, _: getattr(path[-1], "tuple_name", "") == "ScaleByScheduleState",
        count=jnp.zeros([], jnp.int32),
    )
    return state


def decayed(params: optax.Params) -> optax.Params:
    """Mark what decays: kernels and their factors, but not embeddings, norms or biases."""
    # not by rank: with stacked layers even a norm's scale is two-dimensional
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key in ("kernel", LORA_A, LORA_B), params
    )


def _one_schedule(optim: OptimConfig, peak: float, steps: int) -> optax.Schedule:
    warmup_steps = optim.warmup(steps)
    final, decay_steps = peak * optim.final_lr_fraction, steps - warmup_steps
    warmup = optax.linear_schedule(0.0, peak, warmup_steps)
    if optim.schedule == "cosine":
        decay = optax.cosine_decay_schedule(peak, decay_steps, optim.final_lr_fraction)
    elif optim.schedule == "linear":
        decay = optax.linear_schedule(peak, final, decay_steps)
    else:
        # Decay for at least one step, so that the last step always has the final rate.
        stable = min(round(decay_steps * (1 - optim.decay_fraction)), decay_steps - 1)
        linear = optax.linear_schedule(peak, final, decay_steps - stable)

        def decay(step: Any) -> Any:
            return linear(step + 1 - stable)

    return optax.join_schedules([warmup, decay], [warmup_steps])
