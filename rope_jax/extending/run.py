"""Extend a model: sweep candidates, fit, judge, and write what is better for a runtime."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rope_jax.checkpoints.exporting import export_run
from rope_jax.checkpoints.open import is_gguf
from rope_jax.comparison.curves import compare
from rope_jax.comparison.read import read_sweep
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.data import StdlibData, check_has_texts
from rope_jax.config.entries import SweepEntry, parse_entries
from rope_jax.config.extend import ExtendConfig, ExtendPlan
from rope_jax.config.load import dump, load
from rope_jax.config.presentation import CompareConfig
from rope_jax.config.strategy import read_strategy
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import (
    describe_duration,
    print_message,
    print_overview,
    print_warning,
    print_wrapped,
)
from rope_jax.errors import UserError
from rope_jax.extending.card import model_card
from rope_jax.extending.planning import check_model, lacks_for_fit, make_plan
from rope_jax.extending.verdict import is_below_truncation, passkeys_found, verdict
from rope_jax.fitting.run import STRATEGY, fit_run
from rope_jax.report.comparison import write_comparison
from rope_jax.results.files import SweepTables
from rope_jax.runs.directory import RunDirectory
from rope_jax.runtimes.writing import write_sweep_settings
from rope_jax.sealed import write_text
from rope_jax.session import Session, open_run
from rope_jax.sweeps.model import expected_steps, load_model
from rope_jax.sweeps.run import sweep_run

_PLAN, CARD = "plan.yaml", "README.md"


def extend_run(
    run: RunDirectory, training: TrainingConfig, asked: ExtendConfig, console: Console
) -> Path:
    """Extend a run to a length; return RUN/extend-LENGTH/, with the page and the model card.

    The same call continues what was stopped, and repeats nothing. Raises UserError, or Stopped.
    """
    folder, out = run.path / f"extend-{asked.length}", _output(run, asked)
    (step,) = expected_steps(run, None)
    check_model(training, training.trained_at(step), asked.length)
    if training.imported is not None and training.data == StdlibData():
        check_has_texts(asked.data, run.path)
    if asked.fit and (lacks := lacks_for_fit(asked)):
        raise UserError(f"fit: {lacks}")
    measured = asked.model_copy(update={"export": None, "out": None})
    plan = _decided(folder / _PLAN, run, training, measured, step, console)
    config, tables = sweep_run(run, training, plan.sweep, console)
    if plan.fit is not None and (fitted := _fitted(run, training, plan, config, tables, console)):
        sweep = plan.sweep.model_copy(update={"scalings": (*plan.sweep.scalings, *fitted)})
        config, tables = sweep_run(run, training, sweep, console)
    write_sweep_settings(run, training, config, tables, console)
    below = _conclude(folder, run, training, plan, tables, console)
    if below if asked.export is None else asked.export:
        _export(run, run.evals / config.name / STRATEGY, out, folder / CARD, console)
    else:
        more = "" if below else "; export=true writes it all the same"
        print_message(console, f"no model was written{more}")
    return folder


def _output(run: RunDirectory, asked: ExtendConfig) -> Path:
    """Return what the model is written to; UserError if something else is there."""
    out = Path(asked.out or run.path.with_name(f"{run.path.name}-{asked.length}")).expanduser()
    if out.exists() and not _strategy_beside(out).exists():
        raise UserError(f"out: {out} exists, and no extension wrote it; name another with out=")
    return out


def _strategy_beside(out: Path) -> Path:
    """Return the file with the strategy of an exported model, by which it is known again."""
    return out.with_suffix(".json") if is_gguf(str(out)) else out / STRATEGY


def _decided(
    file: Path,
    run: RunDirectory,
    training: TrainingConfig,
    asked: ExtendConfig,
    step: int,
    console: Console,
) -> ExtendPlan:
    """Return the plan in a file if it was made for the same settings, else a new one."""
    if file.exists() and (plan := load(ExtendPlan, file)).asked == asked:
        return plan
    short = "LENGTH: there is not enough memory; end other programs, or give less"
    with open_run(run, training, console, out_of_memory=short) as session:
        loaded = load_model(session, asked.data, "test")
        plan, seconds = make_plan(asked, loaded, step)
        _announce(plan, session, seconds)
    file.parent.mkdir(exist_ok=True)
    write_text(file, dump(plan))
    return plan


def _announce(plan: ExtendPlan, session: Session, seconds: float) -> None:
    asked, sweep, (task,) = plan.asked, plan.sweep, plan.sweep.tasks
    window, *_ = sweep.lengths or ()
    fit = "frequencies and m, from the best candidate"
    if plan.fit is None:
        why = "as asked" if asked.fit is False else lacks_for_fit(asked) or "minutes are too few"
        fit = f"none: {why}"
    print_overview(
        session.console,
        f"extend {session.config.name} from {window:,} to {asked.length:,} tokens",
        {
            "lengths": ", ".join(f"{n:,}" for n in sweep.lengths or ()),
            "candidates": ", ".join(entry.label for entry in sweep.scalings),
            "texts": f"up to {sweep.max_documents:,} documents, {sweep.max_blocks} × "
            f"{asked.length:,} tokens of each",
            "passkeys": f"{task.samples * len(task.places)} at each length",
            "fit": fit,
            "time": f"{describe_duration(seconds)} of the {asked.minutes:g} minutes, compiling not "
            "counted",
        },
    )


def _fitted(
    run: RunDirectory,
    training: TrainingConfig,
    plan: ExtendPlan,
    config: SweepConfig,
    tables: SweepTables,
    console: Console,
) -> tuple[SweepEntry, ...]:
    """Return the entry of the fit that starts at the best candidate, () if it cannot be made."""
    assert plan.fit is not None
    losses = {row.name: row.nll for row in tables.rows if row.length == plan.asked.length}
    starts = [entry for entry in config.scalings if not entry.is_baseline]
    start = min(starts, key=lambda entry: losses[entry.label])
    name = f"{plan.fit.name}-{start.label}"
    fit = plan.fit.model_copy(update={"name": name, "start": start})
    try:
        strategy = fit_run(run, training, fit, console) / STRATEGY
    except UserError as error:
        if plan.asked.fit:
            raise
        print_warning(console, f"no fit: {error}")
        return ()
    return parse_entries({"type": str(strategy), "name": "fitted"})


def _conclude(
    folder: Path,
    run: RunDirectory,
    training: TrainingConfig,
    plan: ExtendPlan,
    tables: SweepTables,
    console: Console,
) -> bool:
    """Write the page and the card, print the verdict; return whether truncation is beaten."""
    evals, length, newest = run.evals / plan.sweep.name, plan.asked.length, tables.checkpoints[0]
    winner = read_strategy(str(evals / STRATEGY)).made_by["entry"]
    found = passkeys_found(tables.tasks.samples, newest.step)
    candidates = len(newest.curves.keys() - {"trained"})
    sentences = verdict(newest, winner, length, found, candidates)
    comparison = compare([read_sweep(evals)], [], CompareConfig(show="above_truncation"))
    write_comparison(folder, replace(comparison, notes=[*sentences, *comparison.notes]))
    files = evals / "results.md", evals / "settings.md"
    write_text(folder / CARD, model_card(training, plan, tables, sentences, files))
    print_wrapped(console, "verdict", "bold")
    for sentence in sentences:
        print_wrapped(console, sentence)
    return is_below_truncation(newest, winner, length)


def _export(run: RunDirectory, strategy: Path, out: Path, card: Path, console: Console) -> None:
    """Write the model with a strategy, and its card; once."""
    beside, content = _strategy_beside(out), strategy.read_text("utf-8")
    if not out.exists():
        export_run(run, ExportConfig(strategy=str(strategy)), out, console)
        write_text(beside, content)
    elif beside.read_text("utf-8") != content:
        raise UserError(f"out: {out} holds the model with another scaling; delete it, or give out=")
    else:
        print_message(console, f"{out}: already written")
    write_text(out.with_suffix(".md") if is_gguf(str(out)) else out / CARD, card.read_text("utf-8"))
