"""Fit a run's positions: from its checkpoint to a strategy file, a table and a figure."""

import json
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console

from rope_jax import stopping
from rope_jax.config.data import StdlibData, check_has_texts
from rope_jax.config.entries import AnyEntry, SweepEntry, entry_settings
from rope_jax.config.fit import FitConfig
from rope_jax.config.inherit import saved_steps
from rope_jax.config.load import dump, load
from rope_jax.config.model import check_encoding
from rope_jax.config.strategy import write_strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.console import describe_duration, print_message, print_overview
from rope_jax.devices.hardware import peak_flops, reached_flops
from rope_jax.devices.memory import check_fits, in_gib
from rope_jax.devices.window_memory import LARGEST_OVERESTIMATE
from rope_jax.errors import UserError, errors_in
from rope_jax.evaluation.plan import check_entries
from rope_jax.fitting.fitter import Fit, FitState
from rope_jax.fitting.parameters import Parameters, default_start, parameters_of
from rope_jax.fitting.results import FitRow, draw_numbers, fit_rows, print_results
from rope_jax.model.cost import flops_per_token
from rope_jax.model.decoder import LanguageModel
from rope_jax.plots.saving import save_figure
from rope_jax.results.files import format_csv
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import finite
from rope_jax.sealed import locked, replacing, write_text
from rope_jax.session import Session, open_run
from rope_jax.sweeps.announcement import describe_entry
from rope_jax.sweeps.model import EvalModel, load_model, sweep_flops
from rope_jax.sweeps.resolve import LONGEST_DEFAULT
from rope_jax.training.checkpoints import newest_step

STRATEGY = "strategy.json"
_SUMMARY = "summary.json"
_ENTRY: TypeAdapter[SweepEntry] = TypeAdapter(AnyEntry)


def fit_run(
    run: RunDirectory, training: TrainingConfig, config: FitConfig, console: Console
) -> Path:
    """Fit positions with the weights of a run frozen; return the folder RUN/fits/<name>/.

    The same call continues a fit that was stopped. Raises UserError, or Stopped after a signal.
    """
    folder = run.fits / config.name
    advice = "length: there is not enough memory; lower batch_tokens or length"
    opened = open_run(run, training, console, attention=config.attention, out_of_memory=advice)
    with opened as session:
        model = session.config.model
        if model.position.type != "rope":
            raise UserError(
                f"{run.path}: its position is {model.position.type}, and a fit is for rope"
            )
        if not model.backend.is_softmax:
            raise UserError(
                f"{run.path}: its attention is {model.attention}, and a fit is for a softmax"
            )
        if training.imported is not None and training.data == StdlibData():  # an import's default
            check_has_texts(config.data, run.path)
        saved = saved_steps(run.checkpoints)
        step = max(saved, default=0) if config.step is None else config.step
        if step in saved:  # before anything is loaded; others are refused when they are read
            checked_start(session.config, config, session.config.stage_at(step))
        file = folder / "fit.yaml"
        if file.exists() and load(FitConfig, file) != config:
            raise UserError(
                f"{folder}: holds a fit with other settings; choose another name, or delete that "
                "folder"
            )
        if (folder / _SUMMARY).exists():
            _check_finished(folder / _SUMMARY, run, config)
            print_message(console, f"{folder}: already fitted")
        else:
            _fit(folder, session, config)
    return folder


def _check_finished(summary: Path, run: RunDirectory, config: FitConfig) -> None:
    """UserError if a finished fit is of another checkpoint than the one that would be fitted."""
    folder = summary.parent
    try:
        fitted = json.loads(summary.read_text(encoding="utf-8"))["step"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{summary}: is damaged; delete {folder} to fit again") from None
    wanted = newest_step(run.checkpoints) if config.step is None else config.step
    if wanted and fitted != wanted:  # 0: the checkpoints have been deleted since
        raise UserError(
            f"{folder}: holds a fit of step {fitted}, and the newest checkpoint is that of step "
            f"{wanted}; choose another name, or delete that folder"
        )


def checked_start(training: TrainingConfig, config: FitConfig, stage: int) -> SweepEntry:
    """Return where a fit of a stage's checkpoint starts. UserError if it cannot start there."""
    trained = training.trained(stage)
    with errors_in("", UserError):
        config.check_window(trained.window)
    start = config.start
    if start is None:
        start = _ENTRY.validate_python(default_start(training, stage))
    start = start.resolved(trained.scaling)
    try:  # it is one that a sweep could read with
        check_encoding(training.model, (start,))
        check_entries((start,), training.rotary_layers, trained, config.length[-1])
    except (UserError, ValueError) as error:
        raise UserError(str(error).replace("scalings: ", "start: ", 1)) from error
    # raises here, before weights are read, if nothing that is learned can change the start
    parameters_of(training, config, start, stage)
    return start


def _check_memory(loaded: EvalModel, config: FitConfig) -> None:
    """UserError if not even the forward pass of one step fits into memory beside the weights."""
    training, memory, length = loaded.training, loaded.memory, config.length[-1]
    count = max(1, config.batch_tokens // length)
    memory.check_weights()
    quadratic = training.model.backend.quadratic_memory
    # an estimate may be too high; what passes, the compiler's own figure decides
    check_fits(
        f"{'length' if count == 1 else 'batch_tokens'}: a step reads {count:,} × {length:,} tokens "
        f"and, beside {in_gib(memory.weights)} GiB of weights, takes",
        memory.window(length) * count / LARGEST_OVERESTIMATE,
        memory.available - memory.weights,
        "attention=blockwise takes less" if quadratic else "lower it",
    )


def _fit(folder: Path, session: Session, config: FitConfig) -> None:
    # what is fitted may differ by head
    loaded = load_model(session, config.data, None, whole_heads=True)
    # windows are longer than those of training, which may have kept more of them
    spec = replace(loaded.model.spec, remat=config.remat)
    loaded = replace(loaded, model=LanguageModel(spec, loaded.model.vocab_size))
    _check_memory(loaded, config)
    step, params = loaded.one_checkpoint(config.step)
    training = loaded.training
    start = checked_start(training, config, training.stage_at(step))
    fit = Fit(folder, config, loaded, params, step, start)
    fit_step = fit.make_step()
    needed = config.length[-1] + 1
    if loaded.corpus.validation.lengths().max(initial=0) < needed:
        raise UserError(
            f"length: no document of the validation split has {needed:,} tokens; lower length, "
            "or name more texts with data, or a larger data.validation_fraction"
        )
    _announce(fit, fit_step.parameters.count)
    # only now: what is refused leaves no folder
    busy = f"{folder}: another process is fitting in it; wait for it, or choose another name"
    with locked(folder / ".lock", busy):
        write_text(folder / "fit.yaml", dump(config))
        _conclude(fit, fit_step.parameters, fit.run(fit_step))


def _announce(fit: Fit, learned: int) -> None:
    config, corpus, session = fit.config, fit.loaded.corpus, fit.loaded.session
    training, stage = session.config, session.config.stage_at(fit.step)
    train, validation, _ = corpus.report[:3]
    notes = corpus.notes if config.data is not None else ()
    model = fit.loaded.model
    of_token = flops_per_token(model.spec, model.vocab_size, config.length[-1]) * 2 / 3
    of_check = sweep_flops(fit.plan(["trained"], fit.lengths), model.spec, model.vocab_size)
    checks = 1 + -(-config.steps // config.check_every)
    flops = config.steps * config.batch_tokens * of_token + checks * of_check
    seconds = flops / reached_flops(peak_flops()[0])
    print_overview(
        session.console,
        f"fit {config.name} of {training.name}",
        {
            "checkpoint": f"{session.run.path}, step {fit.step}, window {fit.window:,} tokens",
            "devices": session.describe_devices(),
            "texts": [fit.texts, f"{train}, to learn from", f"{validation}, to check on", *notes],
            "lengths": ", ".join(f"{n:,}" for n in config.length),
            "start": describe_entry(training, fit.start, config.length[-1], stage),
            "learned": f"{learned:,} numbers: {', '.join(config.learn)}, per {config.per}",
            "steps": f"at most {config.steps}, {config.batch_tokens:,} tokens each; "
            f"{describe_duration(seconds)} with checks, compiling not counted",
        },
    )
    if seconds > LONGEST_DEFAULT:
        session.warn(
            "length, steps, batch_tokens, max_documents, max_blocks: lower values of these take "
            "less time, and so does a larger check_every"
        )


def _conclude(fit: Fit, parameters: Parameters, state: FitState) -> None:
    """Write and show the outcome: start, fitted and truncation, on validation."""
    stopping.check()
    folder, session, minutes = fit.folder, fit.loaded.session, state.seconds / 60
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
    rows = fit_rows(fit.sweep(entries, (fit.window, *fit.config.length)))
    with replacing(folder / STRATEGY) as temporary:
        write_strategy(strategy, temporary)
    write_text(folder / "results.csv", format_csv(FitRow._fields, rows))
    save_figure(draw_numbers(parameters, state.best), folder / "numbers.png")
    summary = {**made_by, "stopped": state.stopped, "minutes": round(minutes, 2)}
    summary["checks"] = finite(list(state.checks))
    write_text(folder / _SUMMARY, json.dumps(summary, indent=1) + "\n")
    print_results(session.console, rows, fit.window, parameters.count)
    print_message(
        session.console,
        f"strategy file: {folder / STRATEGY} (an entry of a sweep's `scalings`, or "
        "`rope.strategy` in training); numbers.png beside it shows what was learned",
    )
