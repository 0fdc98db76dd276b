"""Sweep one run: load its checkpoints, measure each, write RUN/evals/<name>/ and show it."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread
from rich.console import Console

from rope_jax import stopping
from rope_jax.comparison.curves import compare_checkpoints
from rope_jax.config.load import dump
from rope_jax.config.model import differ_by_head
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import describe_duration, print_message, print_wrapped
from rope_jax.devices import processes
from rope_jax.devices.hardware import peak_flops, reached_flops
from rope_jax.errors import GO_ON, file_errors
from rope_jax.evaluation.plan import ResolvedSweep
from rope_jax.evaluation.results import (
    SweepResult,
    document_rows,
    rows,
    sample_rows,
    summarize,
    task_rows,
)
from rope_jax.plots.saving import save_figure
from rope_jax.protocols import BASELINE
from rope_jax.report.comparison import results_texts
from rope_jax.report.figure import draw_sweep
from rope_jax.report.measured import QUANTITIES
from rope_jax.report.tasks import draw_tasks
from rope_jax.report.tensorboard import write_events
from rope_jax.report.terminal import SweepProgress, print_sweep, warn_of_chance
from rope_jax.results.files import SweepTables, write_results
from rope_jax.results.rows import Origin
from rope_jax.runs.directory import RUN_CONFIG, RunDirectory
from rope_jax.sealed import replacing_folder, write_text
from rope_jax.session import open_run
from rope_jax.sweeps.announcement import announce
from rope_jax.sweeps.journal import FileJournal, journal_identity
from rope_jax.sweeps.model import EvalModel, chosen_checkpoints, expected_steps, load_model
from rope_jax.sweeps.resolve import PlannedSweep, plan_checkpoints, resolve_run_sweep

Result = tuple[SweepResult, Origin]


def sweep_run(
    run: RunDirectory,
    training: TrainingConfig,
    config: SweepConfig,
    console: Console,
    again: bool = False,
) -> tuple[SweepConfig, SweepTables]:
    """Sweep a run's checkpoints and write RUN/evals/<name>/. again: repeat earlier measurements.

    Return the sweep's config with what its run decides, and what was measured.
    """
    opened = open_run(
        run,
        training,
        console,
        attention=config.attention,
        distributed=config.distributed,
        out_of_memory="lengths: there is not enough memory; end other programs, and the same "
        "command resumes; or lower memory_gib, or leave out the longest length",
    )
    with opened as session, contextlib.ExitStack() as stack:
        steps = expected_steps(run, config.steps)
        resolved = resolve_run_sweep(config, session.config, steps)
        # one sweep of a name at a time; checked now, not after the work
        processes.on_first(lambda: stack.enter_context(run.lock_sweep(config.name)))
        if again:
            processes.on_first(lambda: run.remove_sweep_journals(config.name))
        loaded = load_model(
            session,
            config.data,
            config.split,
            config.memory_gib,
            whole_heads=differ_by_head(entry.map for entry in resolved.config.scalings),
        )
        planned, results = _measure(loaded, resolved, steps)
        config, tables = planned.sweep.config, sweep_tables(results)
        _finish(loaded, config, tables)
    return config, tables


def _measure(
    loaded: EvalModel, sweep: ResolvedSweep, expected: list[int]
) -> tuple[PlannedSweep, list[Result]]:
    """Plan and measure the chosen checkpoints, of steps that are those `expected`, or fewer."""
    session, config = loaded.session, sweep.config
    run, console = session.run, session.console
    planned = _planned(loaded, sweep, expected)  # no weights are read for it
    steps, checkpoints = chosen_checkpoints(
        run, config.steps, loaded.memory.abstract_params, session.warn
    )
    if steps != expected:  # the newest is damaged, or the run is still training
        sweep = resolve_run_sweep(config, session.config, steps)
        planned = _planned(loaded, sweep, steps)
    stopping.check()
    journals = {step: _open_journal(loaded, config, step) for step in steps}
    if flops := sum(loaded.flops(plan, journals[step]) for step, plan in planned.plans.items()):
        seconds = flops / reached_flops(peak_flops()[0])
        print_wrapped(console, f"time: {describe_duration(seconds)}, compiling not counted")

    programs: dict[Any, Any] = {}
    results: list[Result] = []
    with SweepProgress(console, steps) as bar:
        for step, params in checkpoints:
            show = bar.of_checkpoint(step)

            def progress(*done: Any, show: Callable[..., None] = show) -> None:
                stopping.check()  # what has been measured is in the journal
                show(*done)

            plan, journal = planned.plans[step], journals[step]
            # curves that read alike, as with `auto` factors at the window, are one measurement
            keys = {job.key for job in plan.jobs()}
            if reused := len(keys & set(journal)):
                text = f"resuming: {reused} of {len(keys)} measurements reused"
                if reused == len(keys):
                    text = f"nothing to measure: all {reused} measurements were made before"
                    text += " (--again repeats them)"
                console.print(text, style="dim")
            result = loaded.measure(
                plan, params, journal=journal, programs=programs, progress=progress
            )
            results.append((result, loaded.origin(step)))
    return planned, results


def _planned(loaded: EvalModel, sweep: ResolvedSweep, steps: Sequence[int]) -> PlannedSweep:
    planned = plan_checkpoints(loaded, sweep, steps)
    announce(loaded, planned)
    return planned


def _open_journal(loaded: EvalModel, config: SweepConfig, step: int) -> FileJournal:
    """Open this checkpoint's journal, with what an interrupted sweep of this name measured."""
    session = loaded.session
    path = session.run.sweep_journal(config.name, step)

    def read() -> str:
        return path.read_text("utf-8", errors="replace") if path.exists() else ""

    text = processes.broadcast_from_host0(read)
    identity = processes.broadcast_from_host0(
        lambda: journal_identity(session.run, session.config, loaded.corpus, config.split, step)
    )
    journal = FileJournal(path if processes.is_first() else None, identity, text)
    if journal.dropped:
        session.warn(f"{path}: {journal.dropped}")
    return journal


def sweep_tables(results: Sequence[Result]) -> SweepTables:
    """Return the tables of a sweep, from the results of its checkpoints, the newest last."""
    return SweepTables(
        [row for one in results for row in rows(*one)],
        [row for one in results for row in document_rows(*one)],
        [summarize(*one) for one in reversed(results)],
        [row for one in results for row in task_rows(*one)],
        [row for one in results for row in sample_rows(*one)],
    )


def _finish(loaded: EvalModel, config: SweepConfig, tables: SweepTables) -> None:
    """Write the results, delete journals of other checkpoints, and show the tables."""
    run, console, newest = loaded.session.run, loaded.session.console, tables.checkpoints[0]
    folder = run.evals / config.name

    def write() -> None:
        with file_errors(folder, *GO_ON):
            write_folder(folder, config, tables, loaded.session.recorded)
        run.remove_sweep_journals(config.name, [one.step for one in tables.checkpoints])

    processes.on_first(write)
    comparison = compare_checkpoints(tables.rows, tables.checkpoints, config)
    print_sweep(console, comparison, tables)
    if newest.nll_at_window is not None:
        warn_of_chance(console, newest.nll_at_window, loaded.model.vocab_size)
    elif BASELINE in config.protocols:
        print_wrapped(
            console,
            f"nothing is compared with truncation: the window, {newest.window}, is not among the "
            "lengths",
        )
    if comparison.how.show != config.show:
        text = f"show: nats per token, because {QUANTITIES[config.show]} cannot be known here"
        print_wrapped(console, text)
    numbers = "results.md" if comparison.how.show == "above_truncation" else "results.csv"
    names = ("curve.png", "steps.png", *(f"{task.label}.png" for task in config.tasks))
    figures = [path for name in names if (path := folder / name).exists()]
    print_message(
        console,
        f"figure{'s' * (len(figures) > 1)}: {' and '.join(map(str, figures))}; the numbers are in "
        f"{numbers} beside it",
    )


def write_folder(
    folder: Path, config: SweepConfig, tables: SweepTables, training: TrainingConfig
) -> None:
    """Write all files of a sweep; an earlier sweep's folder is replaced once all are complete."""
    comparison = compare_checkpoints(tables.rows, tables.checkpoints, config)
    newest = tables.checkpoints[0]
    with replacing_folder(folder) as new:
        write_text(new / "sweep.yaml", dump(config))
        write_text(new / RUN_CONFIG, dump(training))
        write_results(new, tables)
        markdown, latex = results_texts(comparison, tables)
        write_text(new / "results.md", markdown)
        write_text(new / "results.tex", latex)
        figures = draw_sweep(comparison)
        if newest_rows := [row for row in tables.task_rows if row.step == newest.step]:
            figures |= draw_tasks(newest_rows, newest, config)
        images = {}
        for path, figure in ((new / name, figure) for name, figure in figures.items()):
            save_figure(figure, path)
            images[path.stem] = (imread(path)[..., :3] * 255).round().astype(np.uint8)
        write_events(new, tables, images, config, training)
