"""Fit a run's positions: from its checkpoint to a strategy file, a table and a figure."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from rope_jax import stopping
from rope_jax.config.entries import entry_settings
from rope_jax.config.fit import FitConfig
from rope_jax.config.load import dump, load
from rope_jax.config.strategy import write_strategy
from rope_jax.config.training import Config
from rope_jax.console import describe_duration, print_message, print_overview, print_wrapped
from rope_jax.devices.hardware import peak_flops, reached_flops
from rope_jax.errors import UserError
from rope_jax.fitting.compatibility import (
    check_finished,
    check_memory,
    check_run,
    checked_start,
    renamed,
)
from rope_jax.fitting.fitter import Fit, FitState
from rope_jax.fitting.parameters import Parameters
from rope_jax.fitting.results import as_csv, draw_numbers, fit_rows, print_table
from rope_jax.model.cost import flops_per_token
from rope_jax.plots.saving import save_figure
from rope_jax.report.terminal import warn_of_chance
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import finite
from rope_jax.sealed import locked, replacing, write_text
from rope_jax.session import Session, open_run
from rope_jax.sweeps.announcement import describe_entry
from rope_jax.sweeps.compatibility import check_stages
from rope_jax.sweeps.model import LONGEST_DEFAULT, load_model

STRATEGY = "strategy.json"
_SUMMARY = "summary.json"


def fit_run(run: RunDirectory, training: Config, config: FitConfig, console: Console) -> Path:
    """Fit positions with the weights of a run frozen; return the folder RUN/fits/<name>/.

    The same call continues a fit that was stopped. Raises UserError, or Stopped after a signal.
    """
    folder = run.fits / config.name
    advice = "length: there is not enough memory; lower batch_tokens or length"
    opened = open_run(run, training, console, attention=config.attention, out_of_memory=advice)
    with opened as session, renamed(steps="step", lengths="length"):
        check_run(run.path, session.config, config)
        check_stages(
            session.config,
            () if config.step is None else (config.step,),
            lambda stage: checked_start(session.config, config, stage),
        )
        with _locked(folder, config):
            if (folder / _SUMMARY).exists():
                check_finished(folder / _SUMMARY, run, config)
                print_message(console, f"{folder}: already fitted")
            else:
                _fit(folder, session, config)
    return folder


@contextlib.contextmanager
def _locked(folder: Path, config: FitConfig) -> Iterator[None]:
    """Lock the fit's folder, which is new or holds the same fit; what is refused leaves none."""
    is_new, file = not folder.exists(), folder / "fit.yaml"
    busy = f"{folder}: another process is fitting in it; wait for it, or choose another name"
    with locked(folder / ".lock", busy):
        if not file.exists():
            write_text(file, dump(config))
        elif load(FitConfig, file) != config:
            raise UserError(
                f"{folder}: holds a fit with other settings; choose another name, or delete that "
                "folder"
            )
        try:
            yield
        except (UserError, OSError):
            if is_new and not any(folder.glob("*.npz")):
                shutil.rmtree(folder)
                with contextlib.suppress(OSError):  # it holds other fits
                    folder.parent.rmdir()
            raise


def _fit(folder: Path, session: Session, config: FitConfig) -> None:
    # what is fitted may differ by head
    loaded = load_model(session, config.data, None, whole_heads=True)
    check_memory(loaded, config)
    step, params = loaded.one_checkpoint(config.step)
    training = loaded.training
    start = checked_start(training, config, training.stage_at(step))
    fit = Fit(folder, config, loaded, params, step, start)
    # texts that are too short are refused now, not after the trials
    parameters, fit_step = fit.from_border(next(iter(config.windows), None))
    _announce(fit, parameters)
    warn_of_chance(session.console, fit.validation.nll_at_window(), loaded.model.vocab_size)
    seconds = 0.0
    if len(config.windows) > 1:
        border, seconds = _best_border(fit)
        parameters, fit_step = fit.from_border(border)
    state = fit.run(parameters, fit_step)
    _conclude(fit, parameters, state, (seconds + state.seconds) / 60)


def _best_border(fit: Fit) -> tuple[int, float]:
    """Try every border of `windows`; return the best one, and the seconds that all took."""
    config = fit.config
    states = {border: fit.run(*fit.from_border(border), border) for border in config.windows}
    best = min(states, key=lambda border: states[border].best_nll)
    shown = ", ".join(f"{border}: {state.best_nll:.4f}" for border, state in states.items())
    print_wrapped(
        fit.loaded.session.console,
        f"far keys begin at {best} (validation after {config.trial_steps} steps: {shown})",
    )
    return best, sum(state.seconds for state in states.values())


def _announce(fit: Fit, parameters: Parameters) -> None:
    config, corpus, session = fit.config, fit.loaded.corpus, fit.loaded.session
    training, stage = session.config, session.config.stage_at(fit.step)
    learned, checked, _ = corpus.report[:3]
    notes = corpus.notes if config.data is not None else ()
    splits = [f"{learned}, to learn from", f"{checked}, to check on", *notes]
    seconds = _estimate_seconds(fit)
    print_overview(
        session.console,
        f"fit {config.name} of {training.name}",
        {
            "checkpoint": f"{session.run.path}, step {fit.step}, window {fit.window:,} tokens",
            "devices": session.describe_devices(),
            "texts": [fit.texts, *splits],
            "lengths": ", ".join(f"{n:,}" for n in config.length),
            "start": describe_entry(training, fit.start, config.length[-1], stage),
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


def _estimate_seconds(fit: Fit) -> float:
    """Return roughly the time of all steps and checks."""
    config, model = fit.config, fit.loaded.model
    of_token = flops_per_token(model.config, model.vocab_size, config.length[-1]) * 2 / 3
    trials = len(config.windows) if len(config.windows) > 1 else 0
    steps = config.steps + config.trial_steps * trials
    checks = 1 + trials + -(-steps // config.check_every)
    flops = steps * config.batch_tokens * of_token + checks * fit.validation.flops()
    return flops / reached_flops(peak_flops()[0])


def _conclude(fit: Fit, parameters: Parameters, state: FitState, minutes: float) -> None:
    """Write and show the outcome: start, fitted and truncation, on validation."""
    stopping.check()
    folder, session = fit.folder, fit.loaded.session
    if state.stopped:
        session.warn(f"stopped at step {state.step}: {state.stopped}")
    if state.best_step == 0:
        session.warn("no step beat the starting point; writing it unchanged")
    else:
        session.console.print(f"the best step is {state.best_step}, after {minutes:.1f} minutes")
    made_by = {
        "run": session.run.path.name,
        "step": fit.step,
        "fit": fit.config.name,
        "texts": fit.texts,
        "corpus": fit.loaded.corpus.fingerprint[:16],
        "length": list(fit.config.length),
        "best_step": state.best_step,
        "numbers": parameters.count,
    }
    strategy = parameters.strategy(state.best, made_by)
    entries = [fit.start.model_copy(update={"name": "start"}), entry_settings(strategy, "fitted")]
    rows = fit_rows(fit.validation.sweep(entries, (fit.window, *fit.config.length)))
    with replacing(folder / STRATEGY) as temporary:
        write_strategy(strategy, temporary)
    write_text(folder / "results.csv", as_csv(rows))
    save_figure(draw_numbers(parameters, state.best), folder / "numbers.png")
    summary = {**made_by, "stopped": state.stopped, "minutes": round(minutes, 2)}
    summary["checks"] = finite(list(state.checks))
    write_text(folder / _SUMMARY, json.dumps(summary, indent=1) + "\n")
    print_table(session.console, rows, fit.window, parameters.count)
    print_message(
        session.console,
        f"strategy file: {folder / STRATEGY} (an entry of a sweep's `scalings`, or "
        "`rope.strategy` in training); numbers.png beside it shows what was learned",
    )
