"""The training step of a fit: its windows, and the gradients of its free parameters alone.

Shapes: B windows, n context length; C windows of the model's own length L.
"""

from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from rope_jax.config.fit import FitConfig
from rope_jax.data.storage import TokenSplit
from rope_jax.devices.hardware import compiler_options
from rope_jax.errors import UserError
from rope_jax.fitting.parameters import Free, Parameters
from rope_jax.model.decoder import Params
from rope_jax.sweeps.model import EvalModel


class FitStep:
    """Takes the steps of one fit; one program for each length."""

    def __init__(
        self,
        loaded: EvalModel,
        params: Params,
        parameters: Parameters,
        config: FitConfig,
        window: int,
    ) -> None:
        """UserError: no text is long enough."""
        self._nll_of_last = loaded.nll_of_last
        self._params, self.parameters = params, parameters
        self._config, self._split, self._window = config, loaded.corpus.train, window
        self._everywhere = loaded.memory.placement.replicated
        self._windows(config.length[-1], 1)  # refuses short texts
        self.optimizer = optax.adam(
            optax.warmup_cosine_decay_schedule(
                init_value=0.0 if config.warmup_steps else config.learning_rate,
                peak_value=config.learning_rate,
                warmup_steps=config.warmup_steps,
                decay_steps=config.steps,
                end_value=config.learning_rate * config.final_lr_fraction,
            )
        )
        options = compiler_options(jax.default_backend())
        self._program: Any = jax.jit(self._step, compiler_options=options)

    def __call__(self, free: Free, opt_state: optax.OptState, step: int) -> tuple[Free, Any, Array]:
        """Return free parameters and optimizer state after step `step`, from 1, and its loss."""
        length = self._config.length[(step - 1) % len(self._config.length)]
        tokens = self._windows(length, step)
        # As a step returns them: with another sharding, the second step would compile again.
        free, opt_state = jax.device_put((free, opt_state), self._everywhere)
        arguments: tuple[Any, ...] = (self._params, free, opt_state, tokens)
        if self._config.keep_short:
            arguments += (self._windows(self._window, step),)
        after: tuple[Free, Any, Array] = self._program(*arguments)
        return after

    def _windows(self, length: int, step: int) -> NDArray[np.int32]:
        count = max(1, self._config.batch_tokens // length)
        return windows_within_documents(
            self._split, seed=self._config.seed, step=step, length=length, count=count
        )

    def _step(
        self,
        params: Params,
        free: Free,
        opt_state: optax.OptState,
        tokens: Int[Array, "B n_plus_1"],
        short: Int[Array, "C window_plus_1"] | None = None,
    ) -> tuple[Free, Any, Float[Array, ""]]:
        def loss(free: Free) -> Float[Array, ""]:
            length = tokens.shape[1] - 1
            scored = length if self._config.objective == "all" else length - self._window
            total = self._nll(params, free, tokens, scored).mean()
            if short is not None:
                inside = self._nll(params, free, short, self._window)
                total = total + np.float32(self._config.keep_short) * inside.mean()
            return total

        value, gradient = jax.value_and_grad(loss)(free)
        # optax mixes its integer count with floats
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = self.optimizer.update(gradient, opt_state, free)
        free = self.parameters.projected(optax.apply_updates(free, updates))
        return free, opt_state, value

    def _nll(
        self, params: Params, free: Free, tokens: Int[Array, "B n_plus_1"], last: int
    ) -> Float[Array, "B last"]:
        length = tokens.shape[1] - 1
        positions = np.arange(length, dtype=np.int32)[None]
        rotary = self.parameters.rotary(free, positions, length)
        return self._nll_of_last(params, tokens, rotary, None if last == length else last)


def windows_within_documents(
    split: TokenSplit, *, seed: int, step: int, length: int, count: int
) -> NDArray[np.int32]:
    """Return windows [B, n + 1] within documents, at offsets drawn uniformly.

    A pure function of its arguments. UserError: no document is long enough.
    """
    choices = np.maximum(split.lengths() - length, 0)
    ends = np.cumsum(choices)
    if not len(ends) or not ends[-1]:
        raise UserError(
            f"length: no document of the training split has {length + 1:,} tokens; lower length, "
            "or name longer texts with data"
        )
    raw = np.random.Philox(np.random.SeedSequence([seed, length, step])).random_raw(count)
    drawn = np.array([(bits * int(ends[-1])) >> 64 for bits in raw.tolist()], np.int64)
    document = np.searchsorted(ends, drawn, side="right")
    offsets = split.starts[document] + drawn - (ends - choices)[document]
    rows = [split.tokens[offset : offset + length + 1] for offset in offsets.tolist()]
    return np.stack(rows).astype(np.int32)
