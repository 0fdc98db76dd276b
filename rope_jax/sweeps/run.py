"""Sweep one run: load its checkpoints, measure each, write and show the results."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
from numpy.typing import NDArray
from rich.console import Console

from rope_jax import stopping
from rope_jax.config.sharding_checks import differ_by_head
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.console import (
    describe_duration,
    plain_console,
    print_message,
    print_overview,
    print_warning,
    print_wrapped,
)
from rope_jax.data.storage import Corpus, TokenSplit
from rope_jax.data.tokenizers import describe_tokenizer
from rope_jax.devices import processes
from rope_jax.devices.hardware import device_line, peak_flops, reached_flops
from rope_jax.devices.memory import device_bytes, shortage_as
from rope_jax.devices.rendezvous import joined
from rope_jax.errors import UserError
from rope_jax.evaluation import SweepResult
from rope_jax.evaluation.plan import Plan, sweep_lengths
from rope_jax.evaluation.results import document_rows, rows
from rope_jax.evaluation.summary import summarize
from rope_jax.evaluation.sweep import Progress
from rope_jax.evaluation.task_results import task_tables
from rope_jax.model.memory import check_weights, check_window, describe_memory, memory_table
from rope_jax.model.resolve import for_platform, numbers_in_words
from rope_jax.protocols import BASELINE
from rope_jax.report.sweep import SweepProgress, print_sweep, warn_of_chance
from rope_jax.results.rows import Origin
from rope_jax.results.summary import SweepSummary
from rope_jax.rope import Scaling
from rope_jax.rope.describe import describe_scaling
from rope_jax.rope.files import read_limited
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.checkpoints import chosen_checkpoints, expected_steps
from rope_jax.sweeps.code import check_code
from rope_jax.sweeps.compatibility import (
    check_key_tokens,
    check_run_entries,
    check_texts,
    for_encoding,
    for_tokenizer,
    with_attention,
)
from rope_jax.sweeps.estimate import LONGEST_DEFAULT, Choice, affordable, sweep_flops
from rope_jax.sweeps.files import write_folder
from rope_jax.sweeps.journal import FileJournal, journal_identity
from rope_jax.sweeps.model import LoadedModel, load_model

Result = tuple[SweepResult, Origin]
_MOST_OF_JOURNAL = 2**30  # bytes; a measurement takes about 20 per document


def sweep_run(
    run: RunDirectory,
    training: Config,
    config: SweepConfig,
    console: Console,
    *,
    again: bool = False,
) -> None:
    """Sweep a run's checkpoints and write RUN/evals/<name>/.

    Measurements that an earlier sweep of this name made are not made again, unless `again`.
    """
    check_code()
    trained_with = training
    if config.attention is not None:
        training = with_attention(training, config.attention)
    config = for_encoding(training, config)
    check_run_entries(training, config)
    check_texts(training, config)
    check_key_tokens(training, config)
    with joined(config.distributed), contextlib.ExitStack() as stack:
        if not processes.is_first():
            console = plain_console(quiet=True)
        training = for_platform(training)
        # one sweep of a name at a time; checked now, not after the work
        processes.on_first(lambda: stack.enter_context(run.lock_sweep(config.name)))
        if again:
            processes.on_first(lambda: run.remove_sweep_journals(config.name))
        out_of_memory = (
            "lengths: there is not enough memory; end other programs, and the same command "
            "resumes; or lower memory_gib, or leave out the longest length"
        )
        try:
            with shortage_as(out_of_memory):
                loaded = load_model(
                    *(run, training, console, config.data, config.split, config.memory_gib),
                    whole_heads=differ_by_head(entry.map for entry in config.scalings),
                )
                config = for_tokenizer(loaded.corpus.tokenizer, config)
                check_key_tokens(training, config, loaded.corpus)
                config, results = _sweep(run, loaded, config, console)
                _finish(run, trained_with, config, results, loaded.model.vocab_size, console)
        except OSError as error:
            raise UserError(
                f"{error.filename or run.path}: {error.strerror or error}; what was measured so "
                "far is kept, and once that is fixed, the same command continues"
            ) from error


def _sweep(
    run: RunDirectory, loaded: LoadedModel, config: SweepConfig, console: Console
) -> tuple[SweepConfig, list[Result]]:
    """Measure the chosen checkpoints. Return the results, and the config with chosen defaults."""
    training = loaded.training
    split = getattr(loaded.corpus, config.split)
    expected = expected_steps(run, config)
    config, plan_of = _planned(run, loaded, config, expected, split, console)
    steps, checkpoints = chosen_checkpoints(run, config, loaded.like, console)
    if steps != expected:  # the newest is damaged, or the run is still training
        config, plan_of = _planned(run, loaded, config, steps, split, console)
    stopping.check()
    programs: dict[Any, Any] = {}
    results: list[Result] = []
    journals = {
        step: _journal(run, training, config, loaded.corpus, step, console) for step in steps
    }
    flops = sum(
        sweep_flops(plan_of(step), training.model, loaded.model.vocab_size, journals[step])
        for step in steps
    )
    if flops:  # something is left to measure
        seconds = flops / reached_flops(peak_flops()[0])
        print_wrapped(console, f"time: {describe_duration(seconds)}, compiling not counted")
    with SweepProgress(console, steps) as bar:
        for step, params in checkpoints:
            result = loaded.measure(
                plan_of(step),
                params,
                journal=journals[step],
                programs=programs,
                progress=_unless_stopped(bar.of_checkpoint(step)),
                resuming=lambda reused, total: console.print(
                    _describe_reuse(reused, total), style="dim"
                ),
            )
            results.append((result, loaded.origin(step)))
    return config, results


def _planned(
    run: RunDirectory,
    loaded: LoadedModel,
    config: SweepConfig,
    steps: Sequence[int],
    split: TokenSplit,
    console: Console,
) -> tuple[SweepConfig, Callable[[int], Plan]]:
    """Print what is about to be swept; no weights are read for it.

    Return the config with chosen defaults, and the function that plans the sweep of a checkpoint.

    UserError: a window of the longest length does not fit into memory.
    """
    training, texts = loaded.training, split.texts()
    token_bytes = loaded.token_bytes(split, texts)
    model, vocab_size = training.model, loaded.model.vocab_size

    def plan_of(config: SweepConfig, step: int) -> Plan:
        lengths = _lengths(config, training, steps)
        asked = config.model_copy(update={"lengths": lengths})
        return loaded.plan(asked, texts, step, token_bytes)

    available = processes.smallest(device_bytes())
    if config.lengths is not None:  # before arrays of these lengths are made
        _check_memory(loaded, config, _lengths(config, training, steps), available, texts)
    newest = steps[-1]
    try:
        choice = affordable(
            config,
            training.stages[training.stage_at(newest)].seq_len,
            lambda config: plan_of(config, newest),
            lambda plan: sweep_flops(plan, model, vocab_size) * len(steps),
        )
    except UserError:
        if training.imported is not None and config.lengths is None:
            _check_default_lengths(_lengths(config, training, steps), split)
        raise
    lengths = _lengths(choice.config, training, steps)
    longest = _longest_read(loaded.training, lengths, console)
    read = [length for length in lengths if length <= longest]
    _announce(console, run, loaded, choice.config, lengths, steps, split, read, available)
    if choice.config is not config:
        _describe_choice(console, config, choice)
        config = choice.config
    _check_memory(loaded, config, read, available, texts)
    plans = {training.stage_at(newest): choice.plan}  # those of a stage's checkpoints are equal

    def planned(step: int) -> Plan:
        stage = training.stage_at(step)
        if stage not in plans:
            plans[stage] = plan_of(config, step)
        return plans[stage]

    return config, planned


def _check_memory(
    loaded: LoadedModel,
    config: SweepConfig,
    lengths: Sequence[int],
    available: float | int,
    texts: Sequence[NDArray[Any]],
) -> None:
    """UserError if a window of the longest length does not fit into memory."""
    imported, most = loaded.training.imported is not None, loaded.training.encoding.longest
    read = [length for length in lengths if most is None or length <= most]
    # texts that are too short for the longest length are refused when it is planned
    if read and any(len(text) >= read[-1] for text in texts):
        check_window(loaded.memory, read, available, config.memory_gib, imported=imported)
    else:
        check_weights(loaded.memory, available, imported=imported)


def _describe_choice(console: Console, config: SweepConfig, choice: Choice) -> None:
    """Say which defaults were not affordable, and what was chosen in their place."""
    keys = ("lengths", "max_documents", "max_blocks")
    changed = [key for key in keys if getattr(config, key) != getattr(choice.config, key)]
    chosen = " ".join(
        f"{key}={str(list(value) if isinstance(value, tuple) else value).replace(' ', '')}"
        for key in changed
        for value in [getattr(choice.config, key)]
    )
    why = "need longer texts"
    if choice.seconds > LONGEST_DEFAULT:
        why = f"would take {describe_duration(choice.seconds)} on a machine like this one"
    print_warning(
        console,
        f"{', '.join(changed)}: the defaults {why}; {chosen} instead, and what you give is kept",
    )


def _describe_reuse(reused: int, total: int) -> str:
    if reused == total:
        return (
            f"nothing to measure: all {total} measurements were made before (--again repeats them)"
        )
    return f"resuming: {reused} of {total} measurements reused"


def _unless_stopped(progress: Progress) -> Progress:
    """Return `progress`, which is called after every batch, with a look at signals before it."""

    def check_and_report(now: str, done: int, total: int) -> None:
        stopping.check()  # what has been measured is in the journal
        progress(now, done, total)

    return check_and_report


def _finish(
    run: RunDirectory,
    training: Config,
    config: SweepConfig,
    results: Sequence[Result],
    vocab_size: int,
    console: Console,
) -> None:
    """Write the results, delete journals of other checkpoints, and show the tables."""
    table = [row for result, origin in results for row in rows(result, origin)]
    by_document = [row for result, origin in results for row in document_rows(result, origin)]
    *earlier, newest = (summarize(result, origin) for result, origin in results)
    summary = SweepSummary(newest=newest, earlier=tuple(earlier))
    folder = run.evals / config.name
    tasks = task_tables(results)
    processes.on_first(lambda: _write(folder, config, table, by_document, summary, training, tasks))
    steps = [one.step for one in summary.checkpoints]
    processes.on_first(lambda: run.remove_sweep_journals(config.name, keep=steps))
    print_sweep(console, table, summary, config.show, tasks)
    if newest.nll_at_window is not None:
        warn_of_chance(console, newest.nll_at_window, vocab_size)
    if BASELINE in config.protocols and not newest.has_baseline:
        print_wrapped(
            console,
            f"no usable length and no gain: the window, {newest.window}, is not among the lengths",
        )
    names = ("curve.png", "steps.png", *(f"{task.label}.png" for task in config.tasks))
    figures = [path for name in names if (path := folder / name).exists()]
    print_message(
        console,
        f"figure{'s' * (len(figures) > 1)}: {' and '.join(map(str, figures))}; the numbers are in "
        "results.csv beside it",
    )


def _write(folder: Path, config: SweepConfig, *results: Any) -> None:
    """Write the sweep's folder. UserError: a full disk, for instance."""
    try:
        write_folder(folder, config, *results)
    except OSError as error:
        raise UserError(
            f"{error.filename2 or error.filename or folder}: cannot be written "
            f"({error.strerror or error}); the measurements are kept, and once that is fixed, the "
            "same command writes the results"
        ) from error


def _lengths(config: SweepConfig, training: Config, steps: Iterable[int]) -> tuple[int, ...]:
    """Return the lengths for all checkpoints; what is scored follows from them.

    They include the window of every checkpoint's stage that lies between the others.
    """
    windows = [training.stages[training.stage_at(step)].seq_len for step in steps]
    lengths = sweep_lengths(config, windows[-1])
    return tuple(sorted({*lengths, *(n for n in windows if lengths[0] < n < lengths[-1])}))


def _longest_read(training: Config, lengths: Sequence[int], console: Console) -> int:
    """Return the longest length that the model can read, and print those that it cannot.

    UserError: it can read none.
    """
    most, position = training.encoding.longest, training.model.position.type
    if most is None or most >= lengths[-1]:
        return lengths[-1]
    if most < lengths[0]:
        raise UserError(
            f"lengths: {lengths[0]:,} is too long: position {position} ends at {most:,} tokens"
        )
    shown = ", ".join(f"{length:,}" for length in lengths if length > most)
    print_wrapped(console, f"no curve at {shown}: position {position} ends at {most:,} tokens")
    return max(length for length in lengths if length <= most)


def _journal(
    run: RunDirectory,
    training: Config,
    config: SweepConfig,
    corpus: Corpus,
    step: int,
    console: Console,
) -> FileJournal:
    """Open this checkpoint's journal, with what an interrupted sweep of this name measured."""
    path = run.sweep_journal(config.name, step)
    found = {"identity": "", "text": ""}

    def read() -> None:
        found["identity"] = journal_identity(run, training, corpus, config.split, step)
        try:
            found["text"] = read_limited(path, _MOST_OF_JOURNAL).decode(errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read ({error.strerror}); delete it, or choose another name "
                "with name="
            ) from None

    processes.on_first(read)
    identity = processes.from_first(lambda: found["identity"])
    text = processes.from_first(lambda: found["text"])
    journal = FileJournal(path if processes.is_first() else None, identity, text)
    if journal.dropped:
        print_warning(console, f"{path}: {journal.dropped}")
    return journal


def _check_default_lengths(lengths: Sequence[int], split: TokenSplit) -> None:
    """UserError, with lengths that work, if the windows of a published model exceed the texts."""
    longest = int(split.lengths().max(initial=0))
    if longest < lengths[-1]:
        fitting = [2**k for k in range(9, 31, 2) if 2**k < longest] or [64]
        raise UserError(
            f"lengths: the default ends at {lengths[-1]:,} tokens, and the longest document has "
            f"{longest:,}; give them, such as lengths={fitting}, or longer texts with data"
        )


def _announce(
    console: Console,
    run: RunDirectory,
    loaded: LoadedModel,
    config: SweepConfig,
    lengths: tuple[int, ...],
    steps: Sequence[int],
    split: TokenSplit,
    read: Sequence[int],
    available: float | int,
) -> None:
    """Print what is about to be swept.

    read: the lengths that the model can read. available: bytes of a device.
    """
    training, parameters = loaded.training, jax.tree.leaves(loaded.like)
    scalings: dict[str, list[str]] = {}
    # the stages of the checkpoints only: a run in progress has not reached its last one
    for stage in dict.fromkeys(map(training.stage_at, steps)):
        title = f"scalings at {lengths[-1]:,} tokens"
        title += f", window {training.stages[stage].seq_len:,}" * bool(scalings)
        scalings[title] = _scaling_lines(training, config, lengths[-1], stage)
    stage = training.stage_at(steps[-1])
    window, trained = training.stages[stage].seq_len, training.stage_scaling(stage)
    imported = training.imported is not None
    table = memory_table(loaded.memory, read, available, config.memory_gib, imported=imported)
    devices = device_line(numbers_in_words(training.model))
    if table is None:
        devices += f"; {describe_memory(loaded.memory, read[-1], available, config.memory_gib)}"
    which = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
    print_overview(
        console,
        f"sweep {config.name} of {training.name}",
        {
            "checkpoint": f"{run.path}, {which}; window {window:,} tokens, scaling {trained.type}",
            "model": f"{sum(leaf.size for leaf in parameters):,} parameters",
            "devices": devices,
            "tokenizer": describe_tokenizer(training.tokenizer, loaded.corpus.tokenizer),
            config.split: [
                f"{len(split):,} document{'s' * (len(split) != 1)}, {len(split.tokens):,} tokens",
                *(loaded.corpus.notes if config.data is not None else ()),
            ],
            "lengths": ", ".join(f"{length:,}" for length in lengths),
            "protocols": ", ".join(config.protocols),
            **({"tasks": _describe_tasks(config)} if config.tasks else {}),
            **scalings,
        },
    )
    if table is not None:
        console.print(table)
    files = len({id_.rpartition("#")[0] or id_ for id_ in split.ids})
    if getattr(config.data or training.data, "split_bytes", None) and files < len(split):
        print_warning(
            console,
            f"data.split_bytes: the {len(split):,} documents are parts of {files:,} "
            f"file{'s' * (files != 1)}; "
            "intervals take parts for independent texts, so they are too narrow where those of a "
            "file are alike",
        )
    if config.data is not None:
        print_warning(
            console,
            f"data: whether {run.path} was trained on these texts cannot be checked; if it was, "
            "perplexities come out too low",
        )
    first, autos = training.geometry.train_length, [e for e in config.scalings if e.factor_is_auto]
    if trained.type != "none" and first < window and autos:
        print_warning(
            console,
            f"scalings: auto is length / window, and the window is {window / first:g} times L = "
            f"{first:,}: {', '.join(entry.label for entry in autos)} change nothing up to the "
            "window; give factors of length / L",
        )
    if imported or trained.type != "none":
        print_wrapped(console, _describe_trained(training, trained), "dim")


def _describe_trained(training: Config, trained: Scaling) -> str:
    """Say what the entry `trained` reads with, in every protocol."""
    who = "as published" if training.imported is not None else "as it was trained"
    own = "without scaling"
    if trained.type != "none":
        factor = trained.extension_factor
        own = f"with its own {trained.type}" + (f", factor {factor:g}" if factor else "")
        own += f" of L {training.geometry.train_length:,}"
    replaced = "" if trained.type == "none" else ", which every other entry replaces"
    return f"trained: the model {who}, {own}{replaced}"


def _describe_tasks(config: SweepConfig) -> str:
    """Return the tasks, and how many samples of each are read at each length."""
    counts = [task.samples * (len(task.places) + task.has_control) for task in config.tasks]
    named = zip(config.tasks, counts, strict=True)
    return ", ".join(f"{task.label} ({count:,} samples)" for task, count in named)


def _scaling_lines(training: Config, config: SweepConfig, longest: int, stage: int) -> list[str]:
    """Describe each entry at the longest length; UserError if one cannot be used there."""
    window, trained = training.stages[stage].seq_len, training.stage_scaling(stage)
    trained_map = training.stage_map(stage)
    lines: list[str] = []
    for entry in config.scalings:
        try:
            scaling = entry.at(longest, window, trained)
            map_ = entry.map_at(longest, window, trained_map)
            if not training.model.position.is_rotary:
                lines.append(f"{entry.label}: position {training.model.position.type}")
                continue
            described = describe_scaling(training.rotary_layers, scaling, longest, entry.label)
            if map_ is not None:
                auto = entry.map is not None and entry.map.is_auto
                described[-1] += f"; {map_.description}{' (auto)' * auto}"
            lines += described
        except ValueError as error:
            raise UserError(f"scalings: {entry.label}: {error}") from None
    return lines
