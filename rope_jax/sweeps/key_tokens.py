"""Find the key tokens of a split with a run as the evaluator, and keep them beside the corpus."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import TaskProgressColumn

from rope_jax import stopping
from rope_jax.config.key_tokens import KeyTokensConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.console import print_message, print_overview, print_wrapped, progress_bar
from rope_jax.data.cache import writing_to
from rope_jax.data.storage import TokenSplit
from rope_jax.devices.hardware import device_line
from rope_jax.devices.memory import device_bytes, shortage_as
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import of_all
from rope_jax.evaluation.key_tokens import (
    FEWEST,
    DocumentKeys,
    Evaluator,
    KeyTokens,
    TargetWindows,
    is_key,
    log_probabilities,
    near_windows,
    read_key_tokens,
    whole_windows,
)
from rope_jax.evaluation.reader import EvalBatch, Reader
from rope_jax.evaluation.sweep import memory_budget
from rope_jax.model.decoder import Params
from rope_jax.model.memory import check_window
from rope_jax.model.resolve import for_platform, numbers_in_words
from rope_jax.positions.mapping import with_map
from rope_jax.protocols.windows import Streams, make_streams
from rope_jax.rope import Rotary
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import write_text
from rope_jax.sweeps.checkpoints import chosen_checkpoints, expected_steps
from rope_jax.sweeps.model import LoadedModel, load_model

_FOLDER = "key_tokens"
_OTHER_ALPHA = 1.0  # the share at this alpha is shown beside the one of the mask


def find_key_tokens(
    run: RunDirectory, training: Config, config: KeyTokensConfig, console: Console
) -> Path:
    """Write the key tokens that a run finds in its own corpus; return the file.

    It lies in the corpus's folder, in key_tokens/. The same call does nothing if it is there.

    Raises UserError for bad input, or if there are too few key tokens; Stopped after a signal.
    """
    training = for_platform(training)
    chosen = SweepConfig(steps=None if config.step is None else (config.step,))
    _check_window(config, max(stage.seq_len for stage in training.stages))
    _check_window(config, _window(training, expected_steps(run, chosen)[-1]))
    with shortage_as("short: there is not enough memory for the evaluator's window"):
        loaded = load_model(run, training, console)
        split: TokenSplit = getattr(loaded.corpus, config.split)
        _, checkpoints = chosen_checkpoints(run, chosen, loaded.like, console)
        step, params = next(iter(checkpoints))
        window = _window(training, step)
        _check_window(config, window)
        name = config.name or f"{training.name}-{config.short}"
        path = split.path.parent / _FOLDER / f"{name}.json"
        evaluator = Evaluator(run=training.name, step=step, window=window)
        if path.exists():
            _check_written(path, loaded, config, evaluator)
            print_message(console, f"{path}: already written")
            return path
        check_window(
            *(loaded.memory, [window], device_bytes()), imported=training.imported is not None
        )
        bos_id = loaded.corpus.tokenizer.bos_id
        streams = make_streams(
            split.texts(),
            longest=config.short + config.s,
            max_documents=config.max_documents,
            bos="none" if bos_id is None else "document",
            bos_id=bos_id,
            seed=config.seed,
        )
        _announce(console, run, loaded, config, evaluator, split, streams)
        whole, near = _read(loaded, params, config, evaluator, streams.tokens, console)
    start = 0 if bos_id is None else 1
    found = _key_tokens(loaded, config, evaluator, split, streams, start, whole, near)
    others = sum(
        int(is_key(one, other, _OTHER_ALPHA, config.beta).sum())
        for one, other in zip(whole, near, strict=True)
    )
    _check_count(found, others)
    with writing_to(path.parent, "key tokens"):
        path.parent.mkdir(exist_ok=True)
        write_text(path, found.model_dump_json())
    print_wrapped(console, f"{_shares(found, others)}; written to {path}")
    return path


def _window(training: Config, step: int) -> int:
    """Return the window of a checkpoint, in tokens."""
    return training.stages[training.stage_at(step)].seq_len


def _check_window(config: KeyTokensConfig, window: int) -> None:
    """UserError if an evaluator's window is too short."""
    try:
        config.check_window(window)
    except ValueError as error:
        raise UserError(str(error)) from None


def _check_written(
    path: Path, loaded: LoadedModel, config: KeyTokensConfig, evaluator: Evaluator
) -> None:
    """UserError if a file holds other key tokens than those that would be found."""
    try:
        written = read_key_tokens(str(path))
    except ValueError as error:
        raise UserError(f"name: {error}; delete it, or choose another name") from None
    asked = KeyTokens(
        **_settings(config),
        corpus=loaded.corpus.fingerprint,
        evaluator=evaluator,
        candidates=written.candidates,
        documents=written.documents,
    )
    if written != asked:
        raise UserError(
            f"name: {path} holds key tokens of another evaluator or other settings; choose another "
            "name, or delete it"
        )


def _settings(config: KeyTokensConfig) -> dict[str, Any]:
    """Return what a file says of the settings."""
    keys = {"split", "short", "alpha", "beta", "max_documents", "seed"}
    return config.model_dump(include=keys) | {"stride": config.s}


def _read(
    loaded: LoadedModel,
    params: Params,
    config: KeyTokensConfig,
    evaluator: Evaluator,
    streams: Sequence[NDArray[np.int32]],
    console: Console,
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Return each token's log-probability by document: with the whole window, and near context."""
    sizes, window = [len(stream) for stream in streams], evaluator.window
    # more context than any target has of near context
    least = max(-(-window // 2), config.short + config.s)
    passes = (
        (whole_windows(sizes, window, least), window),
        (near_windows(sizes, config.short, config.s), config.s),
    )
    reader = _reader(loaded, params)
    bar = progress_bar(console, TaskProgressColumn())
    total = sum(windows.length * len(windows.start) for windows, _ in passes)
    task = bar.add_task("reading", total=total, now="")
    found = []
    with bar:
        for windows, last in passes:

            def tick(count: int, length: int = windows.length) -> None:
                stopping.check()
                bar.update(task, advance=count * length, now=f"{length:,} tokens")

            batch = _batch(loaded, windows, streams, evaluator.step)
            (scores,) = reader.read([batch], last, [batch.windows], tick)
            found.append(log_probabilities(windows, sizes, scores.nll))
    whole, near = found
    return whole, near


def _reader(loaded: LoadedModel, params: Params) -> Reader:
    budget = memory_budget(SweepConfig())
    return Reader(
        of_all(loaded.nll_of_last),
        loaded.nll_of_last,
        params,
        rows_at=lambda n: max(1, int(budget / loaded.memory.window(n).total)),
        row_multiple=lambda n: loaded.placement_at(n).row_shards,
        programs={},
    )


def _batch(
    loaded: LoadedModel, windows: TargetWindows, streams: Sequence[NDArray[np.int32]], step: int
) -> EvalBatch:
    return EvalBatch(
        length=windows.length,
        windows=len(windows.start),
        windows_hash="",  # no two batches are compared
        tokens=lambda: windows.tokens(streams),
        rotary=_rotary(loaded.training, step, windows.length),
    )


def _rotary(training: Config, step: int, length: int) -> Rotary:
    """Return the numbers that a checkpoint reads windows of a length with, as it was trained."""
    layers, stage = training.rotary_layers, training.stage_at(step)
    positions = np.arange(length, dtype=np.int32)[None]
    rotary = layers.rotary(training.stage_scaling(stage), positions, length)
    map_ = training.stage_map(stage)
    if map_ is None:
        return rotary
    window = layers.geometry.train_length
    return with_map(rotary, map_, layers, positions, window=window, seq_len=length)


def _key_tokens(
    loaded: LoadedModel,
    config: KeyTokensConfig,
    evaluator: Evaluator,
    split: TokenSplit,
    streams: Streams,
    start: int,
    whole: Sequence[NDArray[np.float32]],
    near: Sequence[NDArray[np.float32]],
) -> KeyTokens:
    """Return the key tokens, given each token's log-probabilities.

    start: how many tokens of a document start precede a document.
    """
    documents = []
    for index, one, other in zip(streams.indices, whole, near, strict=True):
        (places,) = np.nonzero(is_key(one, other, config.alpha, config.beta))
        tokens = tuple((places - start).tolist())
        documents.append(DocumentKeys(index=index, id=split.ids[index], tokens=tokens))
    return KeyTokens(
        **_settings(config),
        corpus=loaded.corpus.fingerprint,
        evaluator=evaluator,
        candidates=sum(int(np.isfinite(other).sum()) for other in near),
        documents=tuple(documents),
    )


def _check_count(found: KeyTokens, others: int) -> None:
    """UserError if there are too few key tokens. others: how many there are at alpha = 1."""
    if found.count >= FEWEST:
        return
    advice = "read more documents, or longer ones, or take a smaller short"
    if others >= FEWEST and found.alpha > _OTHER_ALPHA:
        advice = f"take alpha=1, or {advice}"
    raise UserError(f"alpha: {_shares(found, others)}; fewer than {FEWEST} say little: {advice}")


def _shares(found: KeyTokens, others: int) -> str:
    """Describe how many key tokens there are. others: how many at alpha = 1."""
    count, of = found.count, found.candidates
    shares = f"{count:,} of {of:,} tokens ({100 * count / of:.2g}%) are key tokens"
    if found.alpha == _OTHER_ALPHA:
        return shares
    return f"{shares}, and {others:,} ({100 * others / of:.2g}%) at alpha 1"


def _announce(
    console: Console,
    run: RunDirectory,
    loaded: LoadedModel,
    config: KeyTokensConfig,
    evaluator: Evaluator,
    split: TokenSplit,
    streams: Streams,
) -> None:
    """Print what is about to be read."""
    documents = len(streams.tokens)
    print_overview(
        console,
        f"key tokens of {evaluator.run}",
        {
            "checkpoint": f"{run.path}, step {evaluator.step}; window {evaluator.window:,} tokens",
            "devices": device_line(numbers_in_words(loaded.training.model)),
            config.split: f"{documents:,} of {len(split):,} document{'s' * (len(split) != 1)}, "
            f"{sum(map(len, streams.tokens)):,} tokens",
            "near context": f"{config.short:,} to {config.short + config.s - 1:,} tokens",
            "key tokens": f"log p more than {config.alpha:g} above that of near context, and above "
            f"{config.beta:g} (nats)",
        },
    )
