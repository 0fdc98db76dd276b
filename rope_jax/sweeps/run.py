"""A sweep of one run: load its checkpoints, measure, and leave what was found."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from rope_jax.attention import check_backend
from rope_jax.config.devices import MeshConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.console import describe_scaling, plain_console, print_overview
from rope_jax.data.storage import Corpus, TokenSplit, open_corpus
from rope_jax.data.tokenizer import ByteTokenizer
from rope_jax.devices import processes
from rope_jax.devices.hardware import device_bytes, device_line
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.evaluation import SweepResult, sweep
from rope_jax.evaluation.plan import sweep_lengths
from rope_jax.evaluation.results import Origin, document_rows, rows, summary
from rope_jax.model.cost import forward_bytes
from rope_jax.model.decoder import LanguageModel, language_model
from rope_jax.rope import Rotary, Scaling
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.files import leave
from rope_jax.sweeps.journal import FileJournal
from rope_jax.sweeps.terminal import SweepProgress, tables
from rope_jax.training.checkpoints import (
    DamagedCheckpoint,
    newest_params,
    params_at,
    saved_steps,
)

# (step, parameters), the earliest first
Checkpoint = tuple[int, Any]


def sweep_run(run: RunDirectory, training: Config, config: SweepConfig, console: Console) -> None:
    """Sweep a run's checkpoints; leaves RUN/evals/<name>/."""
    if config.attention is not None:
        model = training.model.model_copy(update={"attention": config.attention})
        training = training.model_copy(update={"model": model})
    with processes.joined(config.distributed), contextlib.ExitStack() as stack:
        if not processes.is_first():
            console = plain_console(quiet=True)
        check_backend(training.model)
        # one sweep of a name at a time; checked now, not after the work
        processes.on_first(lambda: stack.enter_context(run.lock_sweep(config.name)))
        _sweep(run, training, config, console)


def _sweep(run: RunDirectory, training: Config, config: SweepConfig, console: Console) -> None:
    tokenizer = ByteTokenizer()
    corpus = open_corpus(training.data, tokenizer)
    run.check_corpus(corpus)
    placement = Placement(_mesh_for(training))
    model = language_model(training, tokenizer.vocab_size)
    steps, checkpoints = _checkpoints(run, config, model, placement, console)
    lengths = _lengths(config, training, steps)
    split = getattr(corpus, config.split)
    _announce(console, run, training, config, lengths, steps, model, split)
    texts = [split.document(i)[1:] for i in range(len(split))]

    def row_bytes(length: int) -> float:
        return forward_bytes(training.model, tokenizer.vocab_size, length, length)

    longest = lengths[-1]
    if any(len(text) >= longest for text in texts):  # else `sweep` says that none is
        _check_memory(training, config, row_bytes, longest)

    @placement.split_rows
    def nll_of_last(params: Any, tokens: jax.Array, rotary: Rotary, last: int) -> jax.Array:
        positions = jax.numpy.arange(tokens.shape[1] - 1)[None]
        return model.nll(params, tokens[:, :-1], tokens[:, 1:], positions, None, rotary, last)

    def nll(params: Any, tokens: jax.Array, rotary: Rotary) -> jax.Array:
        return nll_of_last(params, tokens, rotary, tokens.shape[1] - 1)

    programs: dict[Any, Any] = {}
    results: list[tuple[SweepResult, Origin]] = []
    with SweepProgress(console, steps) as bar:
        for step, params in checkpoints:
            stage = training.stage_at(step)
            journal = _journal(run, training, config, corpus, step)
            if journal.found:
                console.print(f"goes on: {journal.found} figures were measured before", style="dim")
            result = sweep(
                nll,
                config.scalings,
                lengths,
                texts,
                params=params,
                geometry=training.rotary_layers,
                trained=training.stage_scaling(stage),
                window=training.stages[stage].seq_len,
                bos_id=tokenizer.bos_id,
                nll_of_last=nll_of_last,
                row_bytes=row_bytes,
                row_multiple=placement.mesh.size,
                journal=journal,
                programs=programs,
                progress=bar.of(step),
                **config.model_dump(exclude={"steps", "scalings", "lengths"}),
            )
            of_text = corpus.bytes_per_token, corpus.fingerprint[:16]
            results.append((result, Origin(training.name, step, training.seed, *of_text)))
    _leave(run, config, results, console)


def _leave(
    run: RunDirectory,
    config: SweepConfig,
    results: list[tuple[SweepResult, Origin]],
    console: Console,
) -> None:
    """Write what was found, and show it."""
    table = [row for result, origin in results for row in rows(result, origin)]
    by_document = [row for result, origin in results for row in document_rows(result, origin)]
    *earlier, newest = (summary(result, origin) for result, origin in results)
    about = newest | {"earlier": earlier}
    folder = run.evals / config.name
    processes.on_first(lambda: leave(folder, config, table, by_document, about))
    processes.on_first(lambda: run.remove_sweep_journals(config.name))
    tables(console, table, about)
    window, has_baseline = about["window"], bool(results[-1][0].baseline)
    if "same_tokens" in config.protocols and not has_baseline:
        console.print(f"the window, {window}, lies outside the lengths: no usable length, no gain")
    compilations = sum(result.compilations for result, _ in results)
    compiled = f"{compilations} compilation{'s' * (compilations != 1)}"
    figures = [name for name in ("curve.png", "steps.png") if (folder / name).exists()]
    shown = " and ".join(str(folder / name) for name in figures)
    console.print(f"{compiled}; figure{'s' * (len(figures) > 1)}: {shown}", highlight=False)


def _checkpoints(
    run: RunDirectory,
    config: SweepConfig,
    model: LanguageModel,
    placement: Placement,
    console: Console,
) -> tuple[list[int], Iterator[Checkpoint]]:
    """The steps to sweep, rising, and their checkpoints, each read when its turn has come."""
    like = placement.shard_state(jax.eval_shape(lambda: model.init(0)))
    say = functools.partial(console.print, style="yellow", highlight=False)
    if config.steps is None:
        newest = newest_params(run.checkpoints, like, warn=say)
        return [newest[0]], iter([newest])

    here = " ".join(map(str, saved_steps(run.checkpoints)))
    saved = [int(step) for step in processes.from_first(lambda: here).split()]
    if config.steps == "all":
        return saved, _all_of(run.checkpoints, saved, like, say)
    for step in config.steps:
        if step not in saved:
            there = ", ".join(map(str, saved))
            raise UserError(f"steps: {run.checkpoints} has none of step {step}; it has {there}")
    steps = list(config.steps)
    return steps, ((step, params_at(run.checkpoints, step, like)) for step in steps)


def _all_of(
    directory: Path, saved: list[int], like: Any, say: Callable[[str], None]
) -> Iterator[Checkpoint]:
    """Those that are whole; a run that is still going on may delete some meanwhile."""
    found = 0
    for step in saved:
        try:
            params = params_at(directory, step, like)
        except DamagedCheckpoint as error:
            if step == saved[-1] and not found:
                raise
            say(f"{error}; left out")
            continue
        found += 1
        yield step, params


def _lengths(config: SweepConfig, training: Config, steps: list[int]) -> tuple[int, ...]:
    """The same for all checkpoints: what is scored follows from them.

    The windows of all their stages are among them, where they lie between the others.
    """
    windows = [training.stages[training.stage_at(step)].seq_len for step in steps]
    lengths = sweep_lengths(config, windows[-1])
    return tuple(sorted({*lengths, *(n for n in windows if lengths[0] < n < lengths[-1])}))


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
    path = run.sweep_journal(config.name, step)

    def identity() -> str:
        written = 0  # where a run that goes on has deleted it since it was read
        with contextlib.suppress(FileNotFoundError):
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
    run: RunDirectory,
    training: Config,
    config: SweepConfig,
    lengths: tuple[int, ...],
    steps: list[int],
    model: LanguageModel,
    split: TokenSplit,
) -> None:
    parameters = jax.tree.leaves(jax.eval_shape(lambda: model.init(0)))
    scalings: dict[str, list[str]] = {}
    # of the checkpoint's stage, which need not be the last: the run may still be going on
    for stage in dict.fromkeys(map(training.stage_at, steps)):
        window, trained = training.stages[stage].seq_len, training.stage_scaling(stage)
        title = f"scalings at {lengths[-1]}" + f", window {window}" * bool(scalings)
        scalings[title] = _scaling_lines(training, config, lengths[-1], window, trained)
    stage = training.stage_at(steps[-1])
    window, trained = training.stages[stage].seq_len, training.stage_scaling(stage)
    which = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
    print_overview(
        console,
        f"sweep {config.name} of {training.name}",
        {
            "checkpoint": f"{run.path}, {which}, window {window} tokens, scaling {trained.type}",
            "model": f"{sum(leaf.size for leaf in parameters):,} parameters",
            "devices": device_line(training.model.dtype),
            config.split: f"{len(split):,} documents, {len(split.tokens):,} tokens",
            "lengths": ", ".join(map(str, lengths)),
            "protocols": ", ".join(config.protocols),
            **scalings,
        },
    )
    if trained.type != "none":
        console.print(
            f"trained with {trained.type}: every other entry stands in its place, not on top of it",
            style="dim",
        )


def _scaling_lines(
    training: Config, config: SweepConfig, longest: int, window: int, trained: Scaling
) -> list[str]:
    """What each entry is at the longest length; UserError where it has no formula for it."""
    lines: list[str] = []
    for entry in config.scalings:
        scaling = entry.at(longest, window, trained)
        try:
            lines += describe_scaling(training.rotary_layers, scaling, longest, entry.label)
        except ValueError as error:
            raise UserError(f"scalings: {entry.label}: {error}") from None
    return lines
