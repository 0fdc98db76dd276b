"""A sweep of one run: load its newest checkpoint, measure, write, show."""

import contextlib
import functools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.image import imread
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rope_jax import processes
from rope_jax.attention import check_backend
from rope_jax.checkpoint import newest_params
from rope_jax.config import dump
from rope_jax.data.tokens import ByteTokenizer, Corpus, open_corpus
from rope_jax.errors import UserError
from rope_jax.evaluation import SweepResult, sweep
from rope_jax.evaluation.journal import FileJournal
from rope_jax.evaluation.perplexity import sweep_lengths
from rope_jax.evaluation.results import (
    DocumentRow,
    Origin,
    Row,
    document_rows,
    rows,
    summary,
    write,
)
from rope_jax.memory import forward_bytes
from rope_jax.model import language_model
from rope_jax.plots import curve
from rope_jax.report import device_line, facts, scaling_lines
from rope_jax.rope import Rotary, Scaling
from rope_jax.run_directory import RunDirectory, write_text
from rope_jax.schema import Config, MeshConfig
from rope_jax.sharding import Placement, device_bytes
from rope_jax.sweep_events import write_events
from rope_jax.sweep_report import tables
from rope_jax.sweep_schema import SweepConfig


def sweep_run(run: RunDirectory, training: Config, config: SweepConfig, console: Console) -> None:
    """Sweep a run's newest checkpoint; leaves RUN/evals/<name>/."""
    folder = run.evals / config.name
    if config.attention is not None:
        model = training.model.model_copy(update={"attention": config.attention})
        training = training.model_copy(update={"model": model})
    with processes.joined(config.distributed), contextlib.ExitStack() as stack:
        if not processes.is_first():
            console = Console(quiet=True)
        check_backend(training.model)
        # one sweep of a name at a time; checked now, not after the work
        processes.on_first(lambda: stack.enter_context(run.only_sweep(config.name)))
        _sweep(run, training, config, console, folder)


def _sweep(
    run: RunDirectory, training: Config, config: SweepConfig, console: Console, folder: Path
) -> None:
    tokenizer = ByteTokenizer()
    corpus = open_corpus(training.data, tokenizer)
    run.check_corpus(corpus)
    placement = Placement(_mesh_for(training))
    model = language_model(training, tokenizer.vocab_size)
    like = placement.of_state(jax.eval_shape(lambda: model.init(0)))
    say = functools.partial(console.print, style="yellow", highlight=False)
    step, params = newest_params(run.checkpoints, like, tell=say)
    # of the checkpoint's stage, which need not be the last: the run may still be going on
    stage = training.stage_at(step)
    window, trained = training.stages[stage].seq_len, training.stage_scaling(stage)
    split = getattr(corpus, config.split)
    about_model = {
        "checkpoint": f"{run.path}, step {step}, window {window} tokens, scaling {trained.type}",
        "model": f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters",
        "devices": device_line(training.model.dtype),
        config.split: f"{len(split):,} documents, {len(split.tokens):,} tokens",
    }
    _announce(console, training, config, window, trained, about_model)

    @placement.over_rows
    def nll_of_last(params: Any, tokens: jax.Array, rotary: Rotary, last: int) -> jax.Array:
        positions = jax.numpy.arange(tokens.shape[1] - 1)[None]
        return model.nll(params, tokens[:, :-1], tokens[:, 1:], positions, None, rotary, last)

    def nll(params: Any, tokens: jax.Array, rotary: Rotary) -> jax.Array:
        return nll_of_last(params, tokens, rotary, tokens.shape[1] - 1)

    def row_bytes(length: int) -> float:
        return forward_bytes(training.model, tokenizer.vocab_size, length, length)

    texts = [split.document(i)[1:] for i in range(len(split))]
    longest = sweep_lengths(config, window)[-1]
    if any(len(text) >= longest for text in texts):  # else `sweep` says that none is
        _check_memory(training, config, row_bytes, longest)
    journal = _journal(run, training, config, corpus, step)
    if journal.found:
        console.print(f"goes on: {journal.found} figures were measured before", style="dim")
    columns = (TextColumn("sweeping"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[now]}"), console=console) as bar:
        task = bar.add_task("", total=None, now="")
        result = sweep(
            nll,
            config.scalings,
            config.lengths,
            texts,
            params=params,
            geometry=training.rotary_layers,
            trained=trained,
            window=window,
            bos_id=tokenizer.bos_id,
            nll_of_last=nll_of_last,
            row_bytes=row_bytes,
            row_multiple=placement.mesh.size,
            journal=journal,
            progress=lambda now, done, total: bar.update(
                task, completed=done, total=total, now=now
            ),
            **config.model_dump(exclude={"scalings", "lengths"}),
        )
    origin = Origin(training.name, step, training.seed, corpus.bytes_per_token)
    table, about = rows(result, origin), summary(result, origin)
    by_document = document_rows(result, origin)
    processes.on_first(lambda: _write(folder, config, result, table, by_document, about, training))
    processes.on_first(lambda: run.sweep_journal(config.name).unlink(missing_ok=True))
    tables(console, table, about)
    if "same_tokens" in config.protocols and not result.baseline:
        console.print(f"the window, {window}, lies outside the lengths: no usable length, no gain")
    compiled = f"{result.compilations} compilation{'s' * (result.compilations != 1)}"
    console.print(f"{compiled}; figure: {folder / 'curve.png'}", highlight=False)


def _write(
    folder: Path,
    config: SweepConfig,
    result: SweepResult,
    table: list[Row],
    by_document: list[DocumentRow],
    about: dict[str, Any],
    training: Config,
) -> None:
    """The sweep's files, in their place when all of them are there."""
    done, folder = folder, folder.with_name(f".{folder.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_text(folder / "sweep.yaml", dump(config))
    write(folder, table, by_document, about)
    baseline = result.baseline.get("same_tokens")
    curve(
        folder / "curve.png",
        table,
        window=result.window,
        truncation=baseline.sums.mean() if baseline else None,
        title=f"{training.name}, step {about['step']}: trained at {result.window} tokens, "
        f"{config.split} split, {result.documents} documents",
    )
    figure = (imread(folder / "curve.png")[..., :3] * 255).round().astype(np.uint8)
    write_events(folder, table, about, figure, dump(config))
    # An earlier sweep of this name goes when the new one is in its place, not before.
    earlier = done.with_name(f".{done.name}.old")
    shutil.rmtree(earlier, ignore_errors=True)
    if done.exists():
        done.rename(earlier)
    folder.rename(done)
    shutil.rmtree(earlier, ignore_errors=True)


def _check_memory(
    training: Config, config: SweepConfig, row_bytes: Callable[[int], float], longest: int
) -> None:
    """UserError where one window of the longest length takes more than there may be."""
    needed = row_bytes(longest)
    there, key = device_bytes(), "lengths"
    if config.memory_gib is not None:
        there, key = config.memory_gib * 2**30, "memory_gib"
    if needed > there:
        name = training.model.attention
        advice = "; attention=blockwise takes less" if name == "xla" else ""
        raise UserError(
            f"{key}: a window of {longest:,} tokens takes about {needed / 2**30:,.1f} GiB with "
            f"attention {name}, and there are {there / 2**30:,.1f}{advice}"
        )


def _journal(
    run: RunDirectory, training: Config, config: SweepConfig, corpus: Corpus, step: int
) -> FileJournal:
    """What a sweep of this name that was interrupted has measured of this very checkpoint."""
    path = run.sweep_journal(config.name)

    def identity() -> str:
        written = (run.checkpoints / str(step)).stat().st_mtime_ns
        of = (step, written, corpus.fingerprint, jax.__version__, device_line(training.model.dtype))
        return " ".join([*map(str, of), config.split, training.model_dump_json()])

    def text() -> str:
        return path.read_text(errors="replace") if path.exists() else ""

    of = processes.from_first(identity)
    return FileJournal(path if processes.is_first() else None, of, processes.from_first(text))


def _mesh_for(training: Config) -> MeshConfig:
    """Parameters split as in training where these devices allow it, the batch over all."""
    return MeshConfig(fsdp=math.gcd(training.mesh.fsdp, jax.device_count()))


def _announce(
    console: Console,
    training: Config,
    config: SweepConfig,
    window: int,
    trained: Scaling,
    about_model: dict[str, str],
) -> None:
    lengths = sweep_lengths(config, window)
    longest = lengths[-1]
    lines: list[str] = []
    for entry in config.scalings:
        scaling = entry.at(longest, window, trained)
        try:
            lines += scaling_lines(training.rotary_layers, scaling, longest, entry.label)
        except ValueError as error:
            raise UserError(f"scalings: {entry.label}: {error}") from None
    facts(
        console,
        f"sweep {config.name} of {training.name}",
        {
            **about_model,
            "lengths": ", ".join(map(str, lengths)),
            "protocols": ", ".join(config.protocols),
            f"scalings at {longest}": lines,
        },
    )
    if trained.type != "none":
        console.print(
            f"trained with {trained.type}: every other entry stands in its place, not on top of it",
            style="dim",
        )
