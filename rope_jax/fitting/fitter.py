"""One fit: steps, checks on the validation split, and the state that survives a kill."""

import json
import math
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax import stopping
from rope_jax.config.entries import entry_settings
from rope_jax.config.fit import FitConfig
from rope_jax.config.strategy import Strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import Stopped, UserError
from rope_jax.evaluation import SweepResult
from rope_jax.evaluation.plan import Plan
from rope_jax.fitting.parameters import Free, Parameters
from rope_jax.fitting.step import FitStep
from rope_jax.fitting.terminal import FitProgress
from rope_jax.model.decoder import Params
from rope_jax.runs.logs import Log
from rope_jax.sealed import replacing
from rope_jax.sweeps.compatibility import resolve_sweep
from rope_jax.sweeps.model import LoadedModel
from rope_jax.sweeps.plans import sweep_flops

# What the file of a state holds beside its arrays.
_ABOUT = ("step", "best_step", "best_nll", "checks", "stopped", "seconds")


@dataclass(frozen=True)
class FitState:
    """A fit after `step` steps.

    best, best_step, best_nll: the free parameters with the lowest NLL on validation so far.
    checks: one line for each check: the step and the NLL at every length, nats per token.
    stopped: why it ended before its last step; "" if it did not.
    seconds: what all processes took until it was saved, with compilation and checks.
    """

    free: Free
    opt_state: Any
    step: int
    best: Free
    best_step: int
    best_nll: float
    checks: tuple[dict[str, float], ...] = ()
    stopped: str = ""
    seconds: float = field(default=0.0, compare=False)

    def save(self, path: Path, identity: str) -> None:
        """Write the state, complete or not at all. UserError: a full disk, for instance."""
        about = {"identity": identity} | {name: getattr(self, name) for name in _ABOUT}
        leaves = jax.tree.leaves((self.free, self.opt_state, self.best))
        arrays: dict[str, Any] = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        arrays["about"] = np.array(json.dumps(about))
        try:
            with replacing(path) as temporary:
                np.savez(temporary, **arrays)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({error.strerror or error}); once that is fixed, the "
                "same command continues from the last check"
            ) from error

    def restored(self, path: Path, identity: str) -> "FitState | None":
        """Return the state in a file, with this one's structure; None if there is none.

        UserError: the file is damaged, or belongs to another fit.
        """
        if not path.exists():
            return None
        tree = self.free, self.opt_state, self.best
        expected, structure = jax.tree.flatten(tree)
        try:
            # opened here, because numpy does not close a file that is no archive
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                about = json.loads(str(arrays["about"]))
                leaves = [arrays[f"leaf_{i}"] for i in range(len(expected))]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise UserError(
                f"{path}: is damaged ({type(error).__name__}); delete it to begin the fit again"
            ) from None
        if about.get("identity") != identity:
            raise UserError(
                f"{path}: belongs to a fit with another checkpoint, corpus or code; delete it to "
                "begin again, or choose another name"
            )
        free, opt_state, best = jax.tree.unflatten(structure, map(jnp.asarray, leaves))
        kept = {name: about[name] for name in _ABOUT} | {"checks": tuple(about["checks"])}
        return replace(self, free=free, opt_state=opt_state, best=best, **kept)


class Validation:
    """Measures strategies on the validation split, the same targets every time."""

    def __init__(
        self, loaded: LoadedModel, params: Params, step: int, config: FitConfig, window: int
    ) -> None:
        """UserError: no document of the split is as long as the longest length."""
        needed = config.length[-1] + 1
        if loaded.corpus.validation.lengths().max(initial=0) < needed:
            raise UserError(
                f"length: no document of the validation split has {needed:,} tokens; lower length, "
                "or name more texts with data, or a larger data.validation_fraction"
            )
        self._loaded, self._params, self._step, self._config = loaded, params, step, config
        self._window, self._texts = window, loaded.corpus.validation.texts()
        self._programs: dict[Any, Any] = {}

    def nll(self, strategy: Strategy) -> dict[int, float]:
        """Return a strategy's NLL by length, nats per token; with keep_short, at the window too."""
        result = self.sweep([entry_settings(strategy, "fitted")], self._lengths)
        return {m.length: float(m.sums.mean()) for m in result.measurements}

    def nll_at_window(self) -> float:
        """Return the NLL of the checkpoint as it is, at its window, on a few texts."""
        few = {"max_documents": min(4, self._config.max_documents), "max_blocks": 1}
        (measured,) = self.sweep(["trained"], (self._window,), **few).measurements
        return float(measured.sums.mean())

    def flops(self) -> float:
        """Return the FLOPs of one check."""
        model = self._loaded.model
        return sweep_flops(self._plan(["trained"], self._lengths), model.config, model.vocab_size)

    @property
    def _lengths(self) -> tuple[int, ...]:
        inside = (self._window,) if self._config.keep_short else ()
        return (*inside, *self._config.length)

    def sweep(self, scalings: list[Any], lengths: tuple[int, ...], **settings: int) -> SweepResult:
        """Sweep entries on the validation split.

        settings: keys of a sweep, in place of the fit's.
        """
        return self._loaded.measure(
            self._plan(scalings, lengths, **settings),
            self._params,
            programs=self._programs,
            progress=lambda *_: stopping.check(),  # a check may take longer than a signal waits
        )

    def _plan(self, scalings: list[Any], lengths: tuple[int, ...], **settings: int) -> Plan:
        config = self._config
        asked = SweepConfig.model_validate(
            {
                "scalings": scalings,
                "lengths": list(lengths),
                "split": "validation",
                "max_documents": config.max_documents,
                "max_blocks": config.max_blocks,
                "targets": config.targets or max(1, self._window // 2),
                "seed": config.seed,
                "resamples": config.resamples,
            }
            | settings
        )
        resolved = resolve_sweep(asked, self._loaded.training)
        return self._loaded.plan(resolved, self._texts, self._step)

    def objective(self, nll: dict[int, float]) -> float:
        """Return what a fit minimizes on validation: the mean over its lengths.

        With keep_short, plus that weight times the NLL at the window.
        """
        inside = self._config.keep_short * nll.get(self._window, 0.0)
        return float(np.mean([nll[length] for length in self._config.length])) + inside


class Fitter:
    """Runs one fit from its start, or from where an earlier process was stopped."""

    def __init__(
        self,
        parameters: Parameters,
        step: FitStep,
        validation: Validation,
        config: FitConfig,
    ) -> None:
        self.parameters, self._step = parameters, step
        self._validation, self._config = validation, config

    def fresh(self) -> FitState:
        """Return the state before the first step."""
        free = self.parameters.initial()
        return FitState(free, self._step.optimizer.init(free), 0, free, 0, math.inf)

    def run(
        self,
        state: FitState,
        last: int,
        save: Callable[[FitState], None],
        log: Log,
        progress: FitProgress,
    ) -> FitState:
        """Fit until step `last`, or until checks stop improving; return the last state.

        save: called after every check, and at a signal. Raises Stopped after a signal.
        """
        if state.step and (state.step >= last or state.stopped):
            return state
        began = time.monotonic() - state.seconds

        def keep(state: FitState) -> FitState:
            state = replace(state, seconds=time.monotonic() - began)
            save(state)
            return state

        if state.step == 0:
            state = self._checked(state, log, progress)
        config = self._config
        while state.step < last and not state.stopped:
            number = state.step + 1
            free, opt_state, loss = self._step(state.free, state.opt_state, number)
            state = replace(state, free=free, opt_state=opt_state, step=number)
            value = float(loss)
            if not (math.isfinite(value) and _is_finite(free)):
                what = "numbers are not finite"
                if not math.isfinite(value):
                    what = f"the loss is {value:g}"
                stopped = f"{what} at step {number}; lower learning_rate"
                state = replace(state, free=state.best, stopped=stopped)
                break
            if number % config.log_every_steps == 0:
                log.write_exact(number, {"fit/loss": value})
            progress.stepped(number, value)
            if number % config.check_every == 0 or number == last:
                state = keep(self._checked(state, log, progress))
            if asked := stopping.requested():
                keep(state)
                raise Stopped(
                    f"stopped after step {number} of {last}; the same command continues", asked
                )
        return keep(state)

    def _checked(self, state: FitState, log: Log, progress: FitProgress) -> FitState:
        """Measure the state on validation, log and show it, and keep it if it is the best."""
        nll = self._validation.nll(self.parameters.strategy(state.free))
        value = self._validation.objective(nll)
        check = {"step": float(state.step), **{str(n): x for n, x in nll.items()}}
        state = replace(state, checks=(*state.checks, check))
        log.write_exact(state.step, {f"validation/nll_{n}": x for n, x in nll.items()})
        if value < state.best_nll:
            state = replace(state, best=state.free, best_step=state.step, best_nll=value)
        since = [c for c in state.checks if c["step"] > state.best_step]
        if len(since) >= self._config.patience and state.step < self._config.steps:
            state = replace(state, stopped=f"no improvement in {len(since)} checks")
        progress.checked(state.step, nll, is_best=state.best_step == state.step)
        return state


def identity_of(config: FitConfig, parts: dict[str, Any], parameters: Parameters) -> str:
    """Return one line that differs for fits that differ. parts: checkpoint, corpus, code."""
    numbers = jax.tree.map(lambda x: np.asarray(x).tolist(), parameters.start._asdict())
    about = {"config": config.model_dump(mode="json"), "start": numbers, **parts}
    return json.dumps(about, sort_keys=True)


def state_file(folder: Path, first_border: int | None) -> Path:
    """Return where the state of a fit, or of one trial, is kept."""
    return folder / ("state.npz" if first_border is None else f"trial-{first_border}.npz")


def _is_finite(free: Free) -> bool:
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in jax.tree.leaves(free))
