"""Fit a run's positions: from its checkpoint to a strategy file, a table and a figure."""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console

from rope_jax import stopping
from rope_jax.config.data import StdlibData
from rope_jax.config.entries import SweepEntry, entry_settings
from rope_jax.config.fit import FitConfig
from rope_jax.config.load import dump, load
from rope_jax.config.strategy import write_strategy
from rope_jax.config.training import Config
from rope_jax.config.yaml_text import flow_yaml
from rope_jax.console import describe_duration, print_message, print_overview, print_wrapped
from rope_jax.devices.hardware import peak_flops, reached_flops
from rope_jax.errors import UserError
from rope_jax.fitting.compatibility import check_memory, check_stages, checked_start, renamed
from rope_jax.fitting.figure import draw_numbers
from rope_jax.fitting.fitter import FitState, Fitter, Validation, identity_of, state_file
from rope_jax.fitting.parameters import Parameters, parameters_of
from rope_jax.fitting.results import as_csv, fit_rows
from rope_jax.fitting.step import FitStep
from rope_jax.fitting.terminal import FitProgress, print_table
from rope_jax.model.cost import flops_per_token
from rope_jax.model.decoder import Params
from rope_jax.plots.saving import save_figure
from rope_jax.report.sweep import warn_of_chance
from rope_jax.rope.layers import describe_scaling
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import Log
from rope_jax.sealed import replacing, write_text
from rope_jax.session import Session, open_run
from rope_jax.sweeps.checkpoints import one_checkpoint
from rope_jax.sweeps.code import check_code, code_hash
from rope_jax.sweeps.model import LoadedModel, load_model
from rope_jax.sweeps.plans import LONGEST_DEFAULT
from rope_jax.training.checkpoints import newest_step

STRATEGY = "strategy.json"
_CONFIG = "fit.yaml"
_SUMMARY = "summary.json"
_OUT_OF_MEMORY = "length: there is not enough memory; lower batch_tokens or length"


def fit_run(run: RunDirectory, training: Config, config: FitConfig, console: Console) -> Path:
    """Fit positions with the weights of a run frozen; return the folder RUN/fits/<name>/.

    The same call continues a fit that was stopped, and does nothing for one that is complete.
    Raises UserError for bad input; Stopped after a signal.
    """
    check_code()
    folder = run.fits / config.name
    how: Any = {"attention": config.attention, "out_of_memory": _OUT_OF_MEMORY}
    with (
        open_run(run, training, console, **how) as session,
        renamed(steps="step", lengths="length"),
    ):
        _check_run(session, config)
        check_stages(session.config, config)
        with _locked(folder, config):
            if (folder / _SUMMARY).exists():
                _check_finished(folder, run, config)
                print_message(console, f"{folder}: already fitted")
            else:
                _fit(folder, session, config)
    return folder


def _check_run(session: Session, config: FitConfig) -> None:
    run, training = session.run, session.config
    position, attention = training.model.position.type, training.model.attention
    if position != "rope":
        raise UserError(f"{run.path}: its position is {position}, and a fit is for rope")
    if not training.model.backend.is_softmax:
        raise UserError(f"{run.path}: its attention is {attention}, and a fit is for a softmax")
    if training.imported is not None and training.data == StdlibData():  # an import's default
        config.check_has_texts(run.path)


def _check_finished(folder: Path, run: RunDirectory, config: FitConfig) -> None:
    """UserError if a finished fit is of another checkpoint than the one that would be fitted."""
    try:
        fitted = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / _SUMMARY}: is damaged; delete {folder} to fit again") from None
    wanted = newest_step(run.checkpoints) if config.step is None else config.step
    if wanted and fitted != wanted:  # 0: the checkpoints have been deleted since
        raise UserError(
            f"{folder}: holds a fit of step {fitted}, and the newest checkpoint is that of step "
            f"{wanted}; choose another name, or delete that folder"
        )


@contextlib.contextmanager
def _locked(folder: Path, config: FitConfig) -> Iterator[None]:
    """Lock the fit's folder, which is created with its config, or holds a fit with the same.

    What is refused before its first check leaves no folder behind.

    UserError: it holds another one, or another process fits in it.
    """
    is_new, file = not folder.exists(), folder / _CONFIG
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", blocking=False):
            if not file.exists():
                write_text(file, dump(config))
            elif load(FitConfig, file) != config:
                raise UserError(
                    f"{folder}: holds a fit with other settings; choose another name, or "
                    "delete that folder"
                )
            try:
                yield
            except UserError:
                if is_new and not any(folder.glob("*.npz")):
                    shutil.rmtree(folder)
                    with contextlib.suppress(OSError):  # it holds other fits
                        folder.parent.rmdir()
                raise
    except Timeout:
        raise UserError(
            f"{folder}: another process is fitting in it; wait for it, or choose another name"
        ) from None


@dataclass(frozen=True)
class _Fit:
    """What the trials and the steps of a fit share."""

    folder: Path
    config: FitConfig
    loaded: LoadedModel
    params: Params
    step: int
    """Of the checkpoint."""
    start: SweepEntry
    validation: Validation

    @property
    def window(self) -> int:
        return self.loaded.training.trained_at(self.step).window

    def from_border(self, border: int | None) -> tuple[Parameters, FitStep]:
        """Return what is learned if the far keys begin at a border; None: where the start's do."""
        training = self.loaded.training
        stage = training.stage_at(self.step)
        parameters = parameters_of(training, self.config, self.start, border, stage)
        return parameters, FitStep(self.loaded, self.params, parameters, self.config, self.window)

    def run(
        self, parameters: Parameters, step: FitStep, path: Path, last: int, title: str
    ) -> FitState:
        """Fit until step `last`, from the state in a file if there is one."""
        console = self.loaded.session.console
        fitter = Fitter(parameters, step, self.validation, self.config)
        made_from = {
            "step": self.step,
            "corpus": self.loaded.corpus.fingerprint,
            "code": code_hash(),
        }
        identity, fresh = identity_of(self.config, made_from, parameters), fitter.fresh()
        state = fresh.restored(path, identity) or fresh
        is_trial = title != "fitting"
        if state.step and not is_trial:
            console.print(f"resuming after step {state.step}", style="dim")
        with contextlib.ExitStack() as stack:
            log = Log()
            if not is_trial:
                stack.callback(log.close)
                log.open(self.folder, state.step, timed=False)
            progress = stack.enter_context(FitProgress(console, last, state.step, title))
            return fitter.run(state, last, lambda s: s.save(path, identity), log, progress)


def _fit(folder: Path, session: Session, config: FitConfig) -> None:
    # what is fitted may differ by head
    loaded = load_model(session, config.data, None, whole_heads=True)
    check_memory(loaded, config)
    step, params = one_checkpoint(session.run, config.step, loaded.like, session.warn)
    training = loaded.training
    start, parameters = checked_start(training, config, training.stage_at(step))
    window = training.trained_at(step).window
    # the texts are long enough: said now, not after the trials
    fit_step = FitStep(loaded, params, parameters, config, window)
    validation = Validation(loaded, params, step, config, window)
    fit = _Fit(folder, config, loaded, params, step, start, validation)
    _announce(fit, parameters)
    warn_of_chance(session.console, validation.nll_at_window(), loaded.model.vocab_size)
    seconds = 0.0
    if len(config.windows) > 1:
        border, seconds = _best_border(fit)
        parameters, fit_step = fit.from_border(border)
    state = fit.run(parameters, fit_step, state_file(folder, None), config.steps, "fitting")
    _conclude(fit, parameters, state, (seconds + state.seconds) / 60)


def _best_border(fit: _Fit) -> tuple[int, float]:
    """Try every border of `windows` for trial_steps.

    Return the one with the lowest NLL, and the seconds that all of them took.
    """
    config, nll, seconds = fit.config, dict[int, float](), 0.0
    for border in config.windows:
        path = state_file(fit.folder, border)
        state = fit.run(*fit.from_border(border), path, config.trial_steps, f"trying {border}")
        nll[border] = state.best_nll
        seconds += state.seconds
    best = min(nll, key=nll.__getitem__)
    shown = ", ".join(f"{border}: {value:.4f}" for border, value in nll.items())
    print_wrapped(
        fit.loaded.session.console,
        f"far keys begin at {best} (validation after {config.trial_steps} steps: {shown})",
    )
    return best, seconds


def _announce(fit: _Fit, parameters: Parameters) -> None:
    """Print what is about to be fitted."""
    config, corpus, session = fit.config, fit.loaded.corpus, fit.loaded.session
    training, length = session.config, config.length[-1]
    window, trained, trained_map = training.trained_at(fit.step)
    scaling = fit.start.at(length, window, trained)
    lines = describe_scaling(training.rotary_layers, scaling, length, fit.start.label)
    if (map_ := fit.start.map_at(length, window, trained_map)) is not None:
        lines[-1] += f"; {map_.description}"
    learned, checked, _ = corpus.report[:3]
    notes = corpus.notes if config.data is not None else ()
    splits = [f"{learned}, to learn from", f"{checked}, to check on", *notes]
    seconds = _estimate_seconds(fit)
    print_overview(
        session.console,
        f"fit {config.name} of {training.name}",
        {
            "checkpoint": f"{session.run.path}, step {fit.step}, window {window:,} tokens",
            "devices": session.describe_devices(),
            "texts": [_describe_texts(fit), *splits],
            "lengths": ", ".join(f"{n:,}" for n in config.length),
            "start": lines,
            "learned": f"{parameters.count:,} numbers: {', '.join(config.learn)}, per {config.per}",
            "steps": f"at most {config.steps}, {config.batch_tokens:,} tokens each; "
            f"{describe_duration(seconds)} with checks, compiling not counted",
        },
    )
    if seconds > LONGEST_DEFAULT:
        session.warn(
            "length, steps, batch_tokens, max_documents, max_blocks: lower values of these take "
            "less time, and so does a larger check_every"
        )


def _estimate_seconds(fit: _Fit) -> float:
    """Return roughly what all steps and checks take.

    A step is a forward pass, and a backward pass without the gradients of weights.
    """
    config, model = fit.config, fit.loaded.model
    of_token = flops_per_token(model.config, model.vocab_size, config.length[-1]) * 2 / 3
    trials = len(config.windows) if len(config.windows) > 1 else 0
    steps = config.steps + config.trial_steps * trials
    checks = 1 + trials + -(-steps // config.check_every)
    flops = steps * config.batch_tokens * of_token + checks * fit.validation.flops()
    return flops / reached_flops(peak_flops()[0])


def _describe_texts(fit: _Fit) -> str:
    """Return the source of the texts as YAML."""
    data = fit.config.data or fit.loaded.training.data
    settings = data.model_dump(mode="json", exclude_defaults=True, exclude={"cache_dir", "mix"})
    return flow_yaml({"type": data.type} | settings)


def _conclude(fit: _Fit, parameters: Parameters, state: FitState, minutes: float) -> None:
    """Compare start, fitted and truncation on validation; write and show the outcome."""
    stopping.check()
    folder, config, session = fit.folder, fit.config, fit.loaded.session
    if state.stopped:
        session.warn(f"stopped at step {state.step}: {state.stopped}")
    if state.best_step == 0:
        session.warn("no step beat the starting point; writing it unchanged")
    else:
        session.console.print(f"the best step is {state.best_step}, after {minutes:.1f} minutes")
    made_by = {
        "run": session.run.path.name,
        "step": fit.step,
        "fit": config.name,
        "texts": _describe_texts(fit),
        "corpus": fit.loaded.corpus.fingerprint[:16],
        "length": list(config.length),
        "best_step": state.best_step,
        "numbers": parameters.count,
    }
    strategy = parameters.strategy(state.best, made_by)
    entries = [fit.start.model_copy(update={"name": "start"}), entry_settings(strategy, "fitted")]
    rows = fit_rows(fit.validation.sweep(entries, (fit.window, *config.length)))
    with replacing(folder / STRATEGY) as temporary:
        write_strategy(strategy, temporary)
    write_text(folder / "results.csv", as_csv(rows))
    save_figure(draw_numbers(parameters, state.best), folder / "numbers.png")
    checks = [  # JSON has no number for what is not finite
        {key: x if math.isfinite(x) else None for key, x in check.items()} for check in state.checks
    ]
    summary = {**made_by, "stopped": state.stopped, "minutes": round(minutes, 2), "checks": checks}
    write_text(folder / _SUMMARY, json.dumps(summary, indent=1) + "\n")
    print_table(session.console, rows, fit.window, parameters.count)
    print_message(
        session.console,
        f"strategy file: {folder / STRATEGY} (an entry of a sweep's `scalings`, or "
        "`rope.strategy` in training); numbers.png beside it shows what was learned",
    )
