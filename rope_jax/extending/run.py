"""Extend a model: sweep candidates, fit, judge, and write what is better for a runtime."""

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from rope_jax.checkpoints.exporting import export_run
from rope_jax.checkpoints.open import is_gguf
from rope_jax.comparison.curves import compare
from rope_jax.comparison.read import read_sweep
from rope_jax.config.checkpoints import ExportConfig
from rope_jax.config.data import StdlibData, check_has_texts
from rope_jax.config.entries import SweepEntry, TrainedEntry, parse_entries
from rope_jax.config.extend import ExtendConfig, ExtendPlan
from rope_jax.config.fit import FitConfig
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
from rope_jax.extending.card import CARD, model_card
from rope_jax.extending.planning import (
    SCREENING,
    best_candidate,
    check_model,
    lacks_for_fit,
    make_plan,
)
from rope_jax.extending.verdict import is_below_truncation, passkeys_found, verdict
from rope_jax.fitting.run import STRATEGY, fit_run
from rope_jax.report.comparison import write_comparison
from rope_jax.results.files import SweepTables
from rope_jax.runs.directory import RunDirectory
from rope_jax.runtimes.writing import write_sweep_settings
from rope_jax.sealed import write_text
from rope_jax.session import open_run
from rope_jax.sweeps.model import expected_steps, load_model
from rope_jax.sweeps.run import sweep_run


def extend_run(
    run: RunDirectory, training: TrainingConfig, asked: ExtendConfig, console: Console
) -> Path:
    """Extend a run to a length; return RUN/extend-LENGTH/, with the page and the model card.

    The same call continues what was stopped, and repeats nothing. Raises UserError, or Stopped.
    """
    extension = _Extension(run, training, asked, console)
    out = Path(asked.out or run.path.with_name(f"{run.path.name}-{asked.length}")).expanduser()
    if out.exists() and not _strategy_beside(out).exists():
        raise UserError(f"out: {out} exists, and no extension wrote it; name another with out=")
    plan = extension.plan()
    config, tables = extension.measure(plan)
    write_sweep_settings(run, training, config, tables, console)
    is_better = extension.judge(plan, tables)
    if is_better if asked.export is None else asked.export:
        extension.export(out, run.evals / config.name / STRATEGY)
    else:
        more = "" if is_better else "; export=true writes it all the same"
        print_message(console, f"no model was written{more}")
    return extension.folder


@dataclass(frozen=True)
class _Extension:
    run: RunDirectory
    training: TrainingConfig
    asked: ExtendConfig
    console: Console

    @property
    def folder(self) -> Path:
        return self.run.path / f"extend-{self.asked.length}"

    def plan(self) -> ExtendPlan:
        """Return the plan of an earlier call with the same settings, or a new one."""
        run, training, file = self.run, self.training, self.folder / "plan.yaml"
        asked = self.asked.model_copy(update={"export": None, "out": None})
        (step,) = expected_steps(run, None)
        check_model(training, training.trained_at(step), asked.length)
        if training.imported is not None and training.data == StdlibData():
            check_has_texts(asked.data, run.path)
        if asked.fit and (lacks := lacks_for_fit(asked)):
            raise UserError(f"fit: {lacks}")
        if file.exists() and (plan := load(ExtendPlan, file)).asked == asked:
            return plan
        short = "LENGTH: there is not enough memory; end other programs, or give less"
        with open_run(run, training, self.console, out_of_memory=short) as session:
            plan, seconds = make_plan(asked, load_model(session, asked.data, "test"), step)
            print_overview(self.console, *_overview(plan, training.name, seconds))
        file.parent.mkdir(exist_ok=True)
        write_text(file, dump(plan))
        return plan

    def measure(self, plan: ExtendPlan) -> tuple[SweepConfig, SweepTables]:
        """Sweep, fit, and sweep what was fitted; return the last sweep."""
        sweep, length = plan.sweep, self.asked.length
        if plan.screening is not None:
            best = best_candidate(*self._swept(plan.screening), length)
            sweep = sweep.model_copy(update={"scalings": (TrainedEntry(), best)})
        config, tables = self._swept(sweep)
        if plan.fit is not None:
            fitted = self._fitted(plan.fit, best_candidate(config, tables, length))
            if fitted is not None:
                more = parse_entries({"type": str(fitted), "name": "fitted"})
                sweep = sweep.model_copy(update={"scalings": (*sweep.scalings, *more)})
                config, tables = self._swept(sweep)
        return config, tables

    def _swept(self, config: SweepConfig) -> tuple[SweepConfig, SweepTables]:
        return sweep_run(self.run, self.training, config, self.console)

    def _fitted(self, fit: FitConfig, start: SweepEntry) -> Path | None:
        """Return the strategy fitted from an entry; None if it is that, or there is no memory."""
        fit = fit.model_copy(update={"name": f"{fit.name}-{start.label}", "start": start})
        try:
            strategy = fit_run(self.run, self.training, fit, self.console) / STRATEGY
        except UserError as error:
            if self.asked.fit:
                raise
            print_warning(self.console, f"no fit: {error}")
            return None
        return strategy if read_strategy(str(strategy)).made_by["best_step"] else None

    def judge(self, plan: ExtendPlan, tables: SweepTables) -> bool:
        """Write the page and the card, print the verdict; return whether truncation is beaten."""
        evals, length, newest = (
            self.run.evals / plan.sweep.name,
            plan.asked.length,
            tables.checkpoints[0],
        )
        winner = read_strategy(str(evals / STRATEGY)).made_by["entry"]
        found = passkeys_found(tables.samples, newest.step)
        names = {*newest.curves, *(entry.label for entry in plan.sweep.scalings)}
        sentences = verdict(newest, winner, length, found, len(names - {"trained"}))
        comparison = compare([read_sweep(evals)], [], CompareConfig(show="above_truncation"))
        notes = [*sentences, *comparison.notes]
        write_comparison(self.folder, replace(comparison, notes=notes))
        write_text(self.folder / CARD, model_card(self.training, plan, tables, sentences, evals))
        print_wrapped(self.console, "verdict", "bold")
        for sentence in sentences:
            print_wrapped(self.console, sentence)
        return is_below_truncation(newest, winner, length)

    def export(self, out: Path, strategy: Path) -> None:
        """Write the model with a strategy, once, and its card."""
        beside, content = _strategy_beside(out), strategy.read_text("utf-8")
        if not out.exists():
            export_run(self.run, ExportConfig(strategy=str(strategy)), out, self.console)
            write_text(beside, content)
        elif beside.read_text("utf-8") != content:
            raise UserError(
                f"out: {out} holds the model with another scaling; delete it, or give out="
            )
        else:
            print_message(self.console, f"{out}: already written")
        card = out.with_suffix(".md") if is_gguf(str(out)) else out / CARD
        write_text(card, (self.folder / CARD).read_text("utf-8"))


def _strategy_beside(out: Path) -> Path:
    """Return the file with the strategy of an exported model, by which it is known again."""
    return out.with_suffix(".json") if is_gguf(str(out)) else out / STRATEGY


def _overview(plan: ExtendPlan, name: str, seconds: float) -> tuple[str, dict[str, str]]:
    """Return a title, and what will be done."""
    asked, sweep, (task,) = plan.asked, plan.sweep, plan.sweep.tasks
    lengths = [f"{n:,}" for n in sweep.lengths or ()]
    candidates = ", ".join(entry.label for entry in sweep.scalings)
    if plan.screening is not None:
        candidates += f"; {SCREENING} windows choose the one to measure"
    fit = "frequencies and m, from the best candidate"
    if plan.fit is None:
        why = "as asked" if asked.fit is False else lacks_for_fit(asked) or "minutes are too few"
        fit = f"none: {why}"
    return f"extend {name} to {asked.length:,} tokens", {
        "candidates": candidates,
        "measured": f"at {', '.join(lengths)} tokens: {sweep.max_documents:,} documents at most, "
        f"{sweep.max_blocks} × {lengths[-1]} tokens of each; "
        f"{task.samples * len(task.places)} passkeys",
        "fit": fit,
        "time": f"{describe_duration(seconds)} of the {asked.minutes:g} minutes, compiling not "
        "counted",
    }
