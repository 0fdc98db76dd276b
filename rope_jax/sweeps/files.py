"""Write a sweep's folder, RUN/evals/<name>/: settings, tables, summary, figures, event files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread

from rope_jax.config.load import dump
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.plots.saving import save_figure
from rope_jax.report.sweep import results_texts
from rope_jax.report.sweep_figures import draw_sweep
from rope_jax.report.tasks import draw_tasks
from rope_jax.report.tensorboard import write_events
from rope_jax.results.rows import DocumentRow, Row
from rope_jax.results.summary import CheckpointSummary, CurveSummary, SweepSummary
from rope_jax.results.tasks import NO_TASKS, SampleRow, TaskRow, TaskSummary, TaskTables
from rope_jax.runs.directory import RUN_CONFIG
from rope_jax.runs.logs import finite
from rope_jax.runs.tables import format_csv
from rope_jax.sealed import replacing_folder, seal, write_text

# What has a checksum: a damaged file must not give other figures. Users may edit the rest.
_RESULTS = ("results.csv", "results.jsonl", "documents.csv", "summary.json")
_OF_TASKS = ("tasks.csv", "samples.csv")


def write_folder(
    folder: Path,
    config: SweepConfig,
    table: Sequence[Row],
    by_document: Sequence[DocumentRow],
    summary: SweepSummary,
    training: Config,
    tasks: TaskTables = NO_TASKS,
) -> None:
    """Write all files of a sweep; an earlier sweep's folder is replaced once all are complete."""
    with replacing_folder(folder) as new:
        write_text(new / "sweep.yaml", dump(config))
        write_text(new / RUN_CONFIG, dump(training))
        write_results(new, table, by_document, summary, tasks)
        seal(new, (*_RESULTS, *(_OF_TASKS if tasks.rows else ()), RUN_CONFIG))
        newest = summary.newest
        of_newest = [row for row in table if row.step == newest.step]
        markdown, latex = results_texts(of_newest, newest, tasks, config.show)
        write_text(new / "results.md", markdown)
        write_text(new / "results.tex", latex)
        figures = draw_sweep(table, summary.checkpoints, width=config.figure_width)
        if tasks.rows:
            newest_rows = [row for row in tasks.rows if row.step == newest.step]
            figures |= draw_tasks(newest_rows, newest, width=config.figure_width)
        images = {}
        for path, figure in ((new / name, figure) for name, figure in figures.items()):
            save_figure(figure, path)
            images[path.stem] = (imread(path)[..., :3] * 255).round().astype(np.uint8)
        write_events(new, table, summary, images, config, training, tasks.rows)


def write_results(
    folder: Path,
    table: Sequence[Row],
    by_document: Sequence[DocumentRow],
    summary: SweepSummary,
    tasks: TaskTables = NO_TASKS,
) -> None:
    """Write `_RESULTS`, and of a sweep with tasks `_OF_TASKS`."""
    write_text(folder / "results.csv", format_csv(Row._fields, table))
    lines = [json.dumps(finite(row._asdict())) + "\n" for row in table]
    write_text(folder / "results.jsonl", "".join(lines))
    write_text(folder / "documents.csv", format_csv(DocumentRow._fields, by_document))
    if tasks.rows:
        write_text(folder / "tasks.csv", format_csv(TaskRow._fields, tasks.rows))
        write_text(folder / "samples.csv", format_csv(SampleRow._fields, tasks.samples))
    earlier = [_checkpoint_content(checkpoint) for checkpoint in summary.earlier]
    content = finite(_checkpoint_content(summary.newest) | {"earlier": earlier})
    write_text(folder / "summary.json", json.dumps(content, indent=2) + "\n")


def _checkpoint_content(checkpoint: CheckpointSummary) -> dict[str, Any]:
    return {
        "run": checkpoint.run,
        "step": checkpoint.step,
        "window": checkpoint.window,
        "nll_at_window": checkpoint.nll_at_window,
        "perplexity_at_window": checkpoint.perplexity_at_window,
        "bpb_at_window": checkpoint.bpb_at_window,
        "tolerance_nats": checkpoint.tolerance,
        "documents": checkpoint.documents,
        "resampled": checkpoint.unit_kind,
        "units": checkpoint.units,
        "reliable": checkpoint.is_reliable,
        "compilations": checkpoint.compilations,
        "curves": {name: _curve_content(curve) for name, curve in checkpoint.curves.items()},
        "tasks": {
            task: {name: _task_content(task_summary) for name, task_summary in by_name.items()}
            for task, by_name in checkpoint.tasks.items()
        },
    }


def _task_content(summary: TaskSummary) -> dict[str, Any]:
    effective = summary.effective
    return {
        "threshold": summary.threshold,
        "effective_length": effective.length,
        "effective_length_is_last_tested": effective.is_last,
        "effective_length_at_least": effective.at_least,
        "effective_length_at_most": effective.at_most,
        "exact": {n: share._asdict() for n, share in summary.exact.items()},
    }


def _curve_content(curve: CurveSummary) -> dict[str, Any]:
    by_length = {
        "blow_up": curve.blow_up,
        "gain_over_truncation_nats": curve.gain_over_truncation,
        "difference_from_trained_nats": curve.difference_from_trained,
    }
    return {
        "usable_length": curve.usable.length,
        "usable_length_is_last_tested": curve.usable.is_last,
        "usable_length_is_known": curve.usable.is_known,
        "usable_length_at_most": curve.usable_at_most.length,
        "usable_length_at_most_is_last_tested": curve.usable_at_most.is_last,
        **{
            name: {length: estimate._asdict() for length, estimate in estimates.items()}
            for name, estimates in by_length.items()
        },
    }
