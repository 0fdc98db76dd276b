"""Fit a run's positions: from its checkpoint to a strategy file, a table and a figure."""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import TypeAdapter
from rich.console import Console

from rope_jax import stopping
from rope_jax.attention import backend_names
from rope_jax.config.data import StdlibData
from rope_jax.config.entries import AnyEntry, SweepEntry, entry_settings
from rope_jax.config.fit import FitConfig
from rope_jax.config.load import dump, load
from rope_jax.config.strategy import write_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.config.yaml_text import flow_yaml
from rope_jax.console import (
    describe_duration,
    print_message,
    print_overview,
    print_warning,
    print_wrapped,
)
from rope_jax.data.storage import Corpus
from rope_jax.devices.hardware import device_line, peak_flops, reached_flops
from rope_jax.devices.memory import check_fits, device_bytes, in_gib, shortage_as
from rope_jax.errors import UserError
from rope_jax.evaluation.plan import check_entries
from rope_jax.fitting.figure import draw_numbers
from rope_jax.fitting.fitter import FitState, Fitter, Validation, identity_of, state_file
from rope_jax.fitting.parameters import Parameters, parameters_of
from rope_jax.fitting.results import as_csv, fit_rows
from rope_jax.fitting.start import default_start
from rope_jax.fitting.step import FitStep
from rope_jax.fitting.terminal import FitProgress, print_table
from rope_jax.model.cost import flops_per_token
from rope_jax.model.decoder import Params
from rope_jax.model.memory import LARGEST_OVERESTIMATE, check_weights
from rope_jax.model.resolve import for_platform, numbers_in_words
from rope_jax.plots.saving import save_figure
from rope_jax.report.sweep import warn_of_chance
from rope_jax.rope.describe import describe_scaling
from rope_jax.rope.messages import alternatives
from rope_jax.runs.directory import RunDirectory
from rope_jax.runs.logs import Log
from rope_jax.sealed import replacing, write_text
from rope_jax.sweeps.checkpoints import chosen_checkpoints
from rope_jax.sweeps.code import check_code, code_hash
from rope_jax.sweeps.compatibility import for_encoding, with_attention
from rope_jax.sweeps.estimate import LONGEST_DEFAULT
from rope_jax.sweeps.model import LoadedModel, load_model
from rope_jax.training.checkpoints import newest_step

STRATEGY = "strategy.json"
_CONFIG = "fit.yaml"
_SUMMARY = "summary.json"


def fit_run(run: RunDirectory, training: Config, config: FitConfig, console: Console) -> Path:
    """Fit positions with the weights of a run frozen; return the folder RUN/fits/<name>/.

    The same call continues a fit that was stopped, and does nothing for one that is complete.
    Raises UserError for bad input; Stopped after a signal.
    """
    check_code()
    if config.attention is not None:
        training = with_attention(training, config.attention)
    position, attention = training.model.position.type, training.model.attention
    if position != "rope":
        raise UserError(f"{run.path}: its position is {position}, and a fit is for rope")
    if not training.model.backend.is_softmax:
        raise UserError(f"{run.path}: its attention is {attention}, and a fit is for a softmax")
    if training.imported is not None and training.data == StdlibData():  # an import's default
        config.check_has_texts(run.path)
    training = for_platform(training)
    _check_stages(training, config)
    folder = run.fits / config.name
    with _locked(folder, config), _renamed(steps="step", lengths="length"):
        if (folder / _SUMMARY).exists():
            _check_finished(folder, run, config)
            print_message(console, f"{folder}: already fitted")
            return folder
        with shortage_as("length: there is not enough memory; lower batch_tokens or length"):
            _fit_in(folder, run, training, config, console)
    return folder


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


def _fit_in(
    folder: Path, run: RunDirectory, training: Config, config: FitConfig, console: Console
) -> None:
    # what is fitted may differ by head
    loaded = load_model(run, training, console, config.data, None, whole_heads=True)
    chosen = SweepConfig(steps=None if config.step is None else (config.step,))
    _check_memory(loaded, config)
    _, checkpoints = chosen_checkpoints(run, chosen, loaded.like, console)
    step, params = next(iter(checkpoints))
    stage = training.stage_at(step)
    window = training.stages[stage].seq_len
    start, first = _checked_start(training, config, stage)
    identity = {"step": step, "corpus": loaded.corpus.fingerprint, "code": code_hash()}
    borders: tuple[int | None, ...] = config.windows or (None,)
    # the texts are long enough: said now, not after the trials
    fit_step = FitStep(loaded, params, first, config, window)
    validation = Validation(loaded, params, step, config, window)
    texts = _describe_texts(training, config)
    _announce(console, run, loaded, config, first, start, step, validation, window, texts)
    warn_of_chance(console, validation.nll_at_window(), loaded.model.vocab_size)
    border, trials = borders[0], 0.0
    if len(borders) > 1:
        border, trials = _best_border(
            folder, loaded, params, config, start, stage, validation, identity, console
        )
    parameters = first
    if border != borders[0]:
        parameters = parameters_of(training, config, start, border, stage)
        fit_step = FitStep(loaded, params, parameters, config, window)
    fitter = Fitter(parameters, fit_step, validation, config)
    path = state_file(folder, None)
    own = identity_of(config, identity, parameters)
    fresh = fitter.fresh()
    state = fresh.restored(path, own) or fresh
    if state.step:
        console.print(f"resuming after step {state.step}", style="dim")
    with contextlib.ExitStack() as stack:
        log = Log()
        stack.callback(log.close)
        log.open(folder, state.step, timed=False)
        progress = FitProgress(console, config.steps, state.step, "fitting")
        stack.enter_context(progress)
        state = fitter.run(state, config.steps, lambda s: s.save(path, own), log, progress)
    minutes = (trials + state.seconds) / 60
    made_by = {
        "run": run.path.name,
        "step": step,
        "fit": config.name,
        "texts": texts,
        "corpus": loaded.corpus.fingerprint[:16],
        "length": list(config.length),
        "best_step": state.best_step,
        "numbers": parameters.count,
    }
    _conclude(
        folder, made_by, config, parameters, state, start, window, validation, minutes, console
    )


def _best_border(
    folder: Path,
    loaded: LoadedModel,
    params: Params,
    config: FitConfig,
    start: SweepEntry,
    stage: int,
    validation: Validation,
    identity: dict[str, Any],
    console: Console,
) -> tuple[int, float]:
    """Try every border of `windows` for trial_steps.

    Return the one with the lowest NLL, and the seconds that all of them took.
    """
    window = loaded.training.stages[stage].seq_len
    found: dict[int, float] = {}
    seconds = 0.0
    for border in config.windows:
        parameters = parameters_of(loaded.training, config, start, border, stage)
        step = FitStep(loaded, params, parameters, config, window)
        fitter, path = Fitter(parameters, step, validation, config), state_file(folder, border)
        own = identity_of(config, identity, parameters)
        fresh = fitter.fresh()
        state = fresh.restored(path, own) or fresh
        with FitProgress(console, config.trial_steps, state.step, f"trying {border}") as progress:
            save = lambda s, path=path, own=own: s.save(path, own)  # noqa: E731
            state = fitter.run(state, config.trial_steps, save, Log(), progress)
        found[border] = state.best_nll
        seconds += state.seconds
    best = min(found, key=lambda border: found[border])
    shown = ", ".join(f"{border}: {nll:.4f}" for border, nll in found.items())
    print_wrapped(
        console, f"far keys begin at {best} (validation after {config.trial_steps} steps: {shown})"
    )
    return best, seconds


def _check_stages(training: Config, config: FitConfig) -> None:
    """UserError if the fit is impossible, whichever of the run's checkpoints it is for.

    Said before the corpus and a checkpoint are read.
    """
    stages = range(len(training.stages))
    if config.step is not None and config.step <= sum(stage.steps for stage in training.stages):
        stages = range(training.stage_at(config.step), training.stage_at(config.step) + 1)
    errors: list[UserError] = []
    for stage in stages:
        try:
            _checked_start(training, config, stage)
        except UserError as error:
            errors.append(error)
    if len(errors) == len(stages):
        raise errors[-1]


def _checked_start(
    training: Config, config: FitConfig, stage: int
) -> tuple[SweepEntry, Parameters]:
    """Return where a fit of a stage's checkpoint starts. UserError if it cannot start there."""
    try:
        config.check_window(training.stages[stage].seq_len)
    except ValueError as error:
        raise UserError(str(error)) from None
    start = _start(training, config, stage)
    border = config.windows[0] if config.windows else None
    parameters = parameters_of(training, config, start, border, stage)
    _check_attention(training, parameters)
    return start, parameters


def _start(training: Config, config: FitConfig, stage: int) -> SweepEntry:
    """Return the entry at which the fit starts. UserError if a sweep could not read with it."""
    start = config.start
    if start is None:
        adapter: TypeAdapter[SweepEntry] = TypeAdapter(AnyEntry)
        start = adapter.validate_python(default_start(training, stage))
    asked, window = SweepConfig(scalings=(start,)), training.stages[stage].seq_len
    scaling, map_ = training.stage_scaling(stage), training.stage_map(stage)
    with _renamed(scalings="start"):
        for_encoding(training, asked)
        layers, length = training.rotary_layers, config.length[-1]
        check_entries(asked, layers, scaling, window, length, map_)
    return start


def _check_memory(loaded: LoadedModel, config: FitConfig) -> None:
    """UserError if not even the forward pass of one step fits into memory beside the weights."""
    length, there_are = config.length[-1], device_bytes()
    count = max(1, config.batch_tokens // length)
    imported = loaded.training.imported is not None
    check_weights(loaded.memory, there_are, imported=imported)
    weights = loaded.memory.weights
    # an estimate may be too high; what passes, the compiler's own figure decides
    check_fits(
        f"{'length' if count == 1 else 'batch_tokens'}: a step reads {count:,} × {length:,} tokens "
        f"and, beside {in_gib(weights)} GiB of weights, takes",
        loaded.memory.window(length).total * count / LARGEST_OVERESTIMATE,
        there_are - weights,
        "attention=blockwise takes less"
        if loaded.training.model.backend.quadratic_memory
        else "lower it",
    )


def _check_attention(training: Config, parameters: Parameters) -> None:
    """UserError if the strategy that is fitted needs a map, and the backend has none."""
    attention = training.model.attention
    needs_map = parameters.strategy(parameters.initial()).map is not None
    if needs_map and not training.model.backend.interacts:
        raise UserError(
            f"attention: {attention} cannot do the map that these numbers belong to; use "
            f"{alternatives(backend_names(interacts=True))}"
        )


@contextlib.contextmanager
def _renamed(**keys: str) -> Iterator[None]:
    """Name the fit's keys in the errors of a sweep. keys: a sweep's key = the fit's."""
    try:
        yield
    except UserError as error:
        key, _, rest = str(error).partition(": ")
        if key not in keys:
            raise
        raise UserError(f"{keys[key]}: {rest}") from None


@contextlib.contextmanager
def _locked(folder: Path, config: FitConfig) -> Iterator[None]:
    """Lock the fit's folder, which is created with its config, or holds a fit with the same.

    What is refused before its first check leaves no folder behind.

    UserError: it holds another one, another process fits in it, or it cannot be written.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", blocking=False):
            file = folder / _CONFIG
            if file.exists():
                if load(FitConfig, file) != config:
                    raise UserError(
                        f"{folder}: holds a fit with other settings; choose another name, or "
                        "delete that folder"
                    )
            else:
                write_text(file, dump(config))
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
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: cannot be written ({error.strerror or error}); once that "
            "is fixed, the same command continues"
        ) from error


def _announce(
    console: Console,
    run: RunDirectory,
    loaded: LoadedModel,
    config: FitConfig,
    parameters: Parameters,
    start: SweepEntry,
    step: int,
    validation: Validation,
    window: int,
    texts: str,
) -> None:
    """Print what is about to be fitted."""
    training, length = loaded.training, config.length[-1]
    stage = training.stage_at(step)
    scaling = start.at(length, window, training.stage_scaling(stage))
    seconds = _seconds(loaded, config, validation)
    lines = describe_scaling(training.rotary_layers, scaling, length, start.label)
    if (map_ := start.map_at(length, window, training.stage_map(stage))) is not None:
        lines[-1] += f"; {map_.description}"
    print_overview(
        console,
        f"fit {config.name} of {training.name}",
        {
            "checkpoint": f"{run.path}, step {step}, window {window:,} tokens",
            "devices": device_line(numbers_in_words(training.model)),
            "texts": [texts, *_describe_splits(loaded.corpus, config)],
            "lengths": ", ".join(f"{n:,}" for n in config.length),
            "start": lines,
            "learned": f"{parameters.count:,} numbers: {', '.join(config.learn)}, per {config.per}",
            "steps": f"at most {config.steps}, {config.batch_tokens:,} tokens each; "
            f"{describe_duration(seconds)} with checks, compiling not counted",
        },
    )
    if seconds > LONGEST_DEFAULT:
        print_warning(
            console,
            "length, steps, batch_tokens, max_documents, max_blocks: lower values of these take "
            "less time, and so does a larger check_every",
        )


def _seconds(loaded: LoadedModel, config: FitConfig, validation: Validation) -> float:
    """Return roughly what all steps and checks take.

    A step is a forward pass, and a backward pass without the gradients of weights.
    """
    model, length = loaded.training.model, config.length[-1]
    of_token = flops_per_token(model, loaded.model.vocab_size, length) * 2 / 3
    trials = len(config.windows) if len(config.windows or ()) > 1 else 0
    steps = config.steps + config.trial_steps * trials
    checks = 1 + trials + -(-steps // config.check_every)
    flops = steps * config.batch_tokens * of_token + checks * validation.flops()
    return flops / reached_flops(peak_flops()[0])


def _describe_texts(training: Config, config: FitConfig) -> str:
    """Return the source of the texts as YAML."""
    data = config.data or training.data
    settings = data.model_dump(mode="json", exclude_defaults=True, exclude={"cache_dir", "mix"})
    return flow_yaml({"type": data.type} | settings)


def _describe_splits(corpus: Corpus, config: FitConfig) -> list[str]:
    """Return a line for each split that is read, and the notes on texts of the fit's own."""
    learned, checked, _ = corpus.report[:3]
    notes = corpus.notes if config.data is not None else ()
    return [f"{learned}, to learn from", f"{checked}, to check on", *notes]


def _conclude(
    folder: Path,
    made_by: dict[str, Any],
    config: FitConfig,
    parameters: Parameters,
    state: FitState,
    start: SweepEntry,
    window: int,
    validation: Validation,
    minutes: float,
    console: Console,
) -> None:
    """Compare start, fitted and truncation on validation; write and show the outcome."""
    stopping.check()
    if state.stopped:
        print_warning(console, f"stopped at step {state.step}: {state.stopped}")
    if state.best_step == 0:
        print_warning(console, "no step improved on the start, which is what is written")
    else:
        console.print(f"the best step is {state.best_step}, after {minutes:.1f} minutes")
    strategy = parameters.strategy(state.best, made_by)
    entries = [
        start.model_copy(update={"name": "start"}),
        entry_settings(strategy, "fitted"),
    ]
    rows = fit_rows(validation.sweep(entries, (window, *config.length)))
    with replacing(folder / STRATEGY) as temporary:
        write_strategy(strategy, temporary)
    write_text(folder / "results.csv", as_csv(rows))
    save_figure(draw_numbers(parameters, state.best), folder / "numbers.png")
    summary = {
        **made_by,
        "stopped": state.stopped,
        "minutes": round(minutes, 2),
        "checks": [_finite(check) for check in state.checks],
    }
    write_text(folder / _SUMMARY, json.dumps(summary, indent=1) + "\n")
    print_table(console, rows, window, parameters.count)
    print_message(
        console,
        f"strategy file: {folder / STRATEGY} (an entry of a sweep's `scalings`, or "
        "`rope.strategy` in training); numbers.png beside it shows what was learned",
    )


def _finite(check: dict[str, float]) -> dict[str, float | None]:
    """Return a check with None for what JSON has no number for."""
    return {key: x if math.isfinite(x) else None for key, x in check.items()}
