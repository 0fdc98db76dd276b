"""One fit: steps, checks on the validation split, and the state that survives a kill."""

import contextlib
import functools
import json
import math
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax import stopping
from rope_jax.config.entries import SweepEntry, entry_settings
from rope_jax.config.fit import FitConfig
from rope_jax.config.load import flow_yaml
from rope_jax.config.strategy import Strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.console import time_left
from rope_jax.errors import Stopped, UserError
from rope_jax.evaluation.plan import SweepPlan
from rope_jax.evaluation.results import SweepResult
from rope_jax.fitting.parameters import Free, parameters_of
from rope_jax.fitting.step import FitStep
from rope_jax.model.decoder import Params
from rope_jax.runs.logs import Log
from rope_jax.sealed import code_hash, replacing
from rope_jax.sweeps.model import EvalModel
from rope_jax.sweeps.resolve import resolve_run_sweep
from rope_jax.training.loop import StepProgress

_TREES = ("free", "opt_state", "best")


@dataclass(frozen=True)
class FitState:
    """A fit after `step` steps.

    best, best_step, best_nll: the free parameters with the lowest NLL on validation so far.
    checks: the step of each check, and the NLL at every length, nats per token.
    stopped: why it ended before its last step; "" if it did not.
    seconds: of all processes until it was saved, with compilation and checks.
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
        """Write the state, complete or not at all."""
        about = {name: x for name, x in vars(self).items() if name not in _TREES}
        leaves = jax.tree.leaves([getattr(self, name) for name in _TREES])
        with replacing(path) as temporary:
            np.savez(temporary, *leaves, about=json.dumps(about | {"identity": identity}))

    def restored(self, path: Path, identity: str) -> "FitState | None":
        """Return the state in a file; None if there is none. UserError: it is of another fit."""
        if not path.exists():
            return None
        expected, structure = jax.tree.flatten([getattr(self, name) for name in _TREES])
        try:
            # opened here, because numpy does not close a file that is no archive
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                about = json.loads(str(arrays["about"]))
                if about.pop("identity") != identity:
                    raise UserError(
                        f"{path}: belongs to a fit with another checkpoint, corpus or code; delete "
                        "it to begin again, or choose another name"
                    )
                leaves = [jnp.asarray(arrays[f"arr_{i}"]) for i in range(len(expected))]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise UserError(
                f"{path}: is damaged ({type(error).__name__}); delete it to begin the fit again"
            ) from None
        trees = dict(zip(_TREES, jax.tree.unflatten(structure, leaves), strict=True))
        return replace(self, **trees, **about | {"checks": tuple(about["checks"])})


def first_state(step: FitStep) -> FitState:
    """Return the state before the first step."""
    free = step.parameters.initial()
    return FitState(free, step.optimizer.init(free), 0, free, 0, math.inf)


class FitProgress(StepProgress):
    """Progress of a fit: a bar in a terminal, and one line for each check."""

    def stepped(self, step: int, loss: float) -> None:
        self.bar.update(self._task, completed=step, now=f"loss {loss:.3f}")

    def checked(self, step: int, nll: Mapping[int, float], *, is_best: bool) -> None:
        """Print one line for a check on the validation split."""
        values = ", ".join(f"{value:.4f} at {length:,}" for length, value in nll.items())
        best = "  (best so far)" if is_best and step else ""
        left = time_left(self.bar.tasks[self._task]) if self.bar.disable else ""
        self._console.print(f"step {step:>4}/{self._total}  validation {values}{best}{left}")


def run_steps(
    step: FitStep,
    nll: Callable[[Strategy], dict[int, float]],
    config: FitConfig,
    state: FitState,
    save: Callable[[FitState], None],
    log: Log,
    progress: FitProgress,
) -> FitState:
    """Continue a fit from `state` up to its last step, and return its state at the end.

    It ends early once `patience` checks have not improved on the best one, or if the loss or a
    parameter is not finite. The state is saved after every check; a signal saves it and raises
    Stopped.

    nll: returns a strategy's NLL on validation by length, with keep_short at the window too.
    """
    last = config.steps
    if state.step and (state.step >= last or state.stopped):
        return state
    began = time.monotonic() - state.seconds

    def keep(state: FitState) -> FitState:
        state = replace(state, seconds=time.monotonic() - began)
        save(state)
        return state

    def checked(state: FitState) -> FitState:
        """Measure the state on validation, log and show it, and keep it if it is the best."""
        by_length = nll(step.parameters.strategy(state.free))
        # the mean over the lengths, plus keep_short times the NLL at the window
        value = float(np.mean([by_length[length] for length in config.length]))
        value += config.keep_short * sum(x for n, x in by_length.items() if n not in config.length)
        check = {"step": float(state.step), **{str(n): x for n, x in by_length.items()}}
        state = replace(state, checks=(*state.checks, check))
        log.write(state.step, {f"validation/nll_{n}": x for n, x in by_length.items()})
        if value < state.best_nll:
            state = replace(state, best=state.free, best_step=state.step, best_nll=value)
        since = [c for c in state.checks if c["step"] > state.best_step]
        if len(since) >= config.patience and state.step < config.steps:
            state = replace(state, stopped=f"no improvement in {len(since)} checks")
        progress.checked(state.step, by_length, is_best=state.best_step == state.step)
        return state

    if state.step == 0:
        state = checked(state)
    while state.step < last and not state.stopped:
        number = state.step + 1
        free, opt_state, loss = step(state.free, state.opt_state, number)
        state = replace(state, free=free, opt_state=opt_state, step=number)
        value = float(loss)
        if not all(np.isfinite(x).all() for x in jax.tree.leaves((value, free))):
            stopped = f"a number is not finite at step {number}; lower learning_rate"
            state = replace(state, free=state.best, stopped=stopped)
            break
        if number % config.log_every_steps == 0:
            log.write(number, {"fit/loss": value})
        progress.stepped(number, value)
        if number % config.check_every == 0 or number == last:
            state = keep(checked(state))
        if asked := stopping.requested():
            keep(state)
            raise Stopped(
                f"stopped after step {number} of {last}; the same command continues", asked
            )
    return keep(state)


@dataclass(frozen=True)
class Fit:
    """A checkpoint to fit. step: the checkpoint's. programs: those that check."""

    folder: Path
    config: FitConfig
    loaded: EvalModel
    params: Params
    step: int
    start: SweepEntry
    programs: dict[Any, Any] = field(default_factory=dict)

    @property
    def window(self) -> int:
        return self.loaded.training.trained_at(self.step).window

    @property
    def texts(self) -> str:
        """Where the texts come from, as YAML."""
        data = self.config.data or self.loaded.training.data
        settings = data.model_dump(mode="json", exclude_defaults=True, exclude={"cache_dir", "mix"})
        return flow_yaml({"type": data.type} | settings)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of a check."""
        return (*((self.window,) if self.config.keep_short else ()), *self.config.length)

    def plan(self, scalings: list[Any], lengths: Sequence[int]) -> SweepPlan:
        """Plan a sweep of the validation split, of the same targets every time."""
        shared = self.config.model_dump(
            include={"max_documents", "max_blocks", "seed", "resamples"}
        )
        of_sweep = {"scalings": scalings, "lengths": list(lengths), "split": "validation"}
        targets = {"targets": self.config.targets or max(1, self.window // 2)}
        asked = SweepConfig.model_validate(shared | of_sweep | targets)
        resolved = resolve_run_sweep(asked, self.loaded.training, [self.step])
        return self.loaded.plan(resolved, self.loaded.corpus.validation.texts(), self.step)

    def sweep(self, scalings: list[Any], lengths: Sequence[int]) -> SweepResult:
        """Measure what `plan` says."""
        return self.loaded.measure(
            self.plan(scalings, lengths),
            self.params,
            programs=self.programs,
            progress=lambda *_: stopping.check(),  # a check may take longer than a signal waits
        )

    def nll(self, strategy: Strategy) -> dict[int, float]:
        """Return a strategy's NLL by length of a check."""
        result = self.sweep([entry_settings(strategy, "fitted")], self.lengths)
        return {m.length: float(m.sums.mean()) for m in result.measurements}

    def make_step(self) -> FitStep:
        """Return what takes the fit's steps. UserError: the texts are too short."""
        training = self.loaded.training
        stage = training.stage_at(self.step)
        parameters = parameters_of(training, self.config, self.start, stage)
        return FitStep(self.loaded, self.params, parameters, self.config, self.window)

    def run(self, step: FitStep) -> FitState:
        """Fit, from where an earlier process was stopped."""
        config, console = self.config, self.loaded.session.console
        path, state = self.folder / "state.npz", first_state(step)
        # with the config, which its own file keeps, all that a fit depends on
        identity = f"step {self.step} {self.loaded.corpus.fingerprint} {code_hash()}"
        state = state.restored(path, identity) or state
        log, progress = Log(), FitProgress(console, config.steps, state.step, "fitting")
        if state.step:
            console.print(f"resuming after step {state.step}", style="dim")
        log.open(self.folder, state.step)
        with contextlib.closing(log), progress.bar:
            save = functools.partial(FitState.save, path=path, identity=identity)
            return run_steps(step, self.nll, config, state, save, log, progress)
