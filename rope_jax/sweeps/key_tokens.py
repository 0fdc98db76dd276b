"""Find the key tokens of a split with a run as the evaluator, and keep them beside the corpus.

Key tokens are those that only far context makes likely. A target's log-probability is taken twice:
with all text before it that the evaluator's window holds, and with K to K + s − 1 tokens before it.
It is a key token if the first exceeds the second by more than alpha, and beta.

Shapes: W windows, n_plus_1 = n + 1 tokens; last: targets at a window's end; N tokens of a document.
The position of a target is the number of tokens before it in its window.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import TaskProgressColumn

from rope_jax import stopping
from rope_jax.config.sweep import KeyTokensConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import print_message, print_overview, print_wrapped, progress_bar
from rope_jax.data.storage import TokenSplit
from rope_jax.errors import UserError, errors_in, file_errors
from rope_jax.evaluation.measure import Reader
from rope_jax.evaluation.metrics import (
    MIN_KEY_TOKENS,
    DocumentKeys,
    Evaluator,
    KeyTokens,
    read_key_tokens,
)
from rope_jax.evaluation.plan import EvalBatch, rotary_at
from rope_jax.model.decoder import Params
from rope_jax.model.loss import Scores
from rope_jax.protocols.base import make_streams
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import write_text
from rope_jax.session import Session, open_run
from rope_jax.sweeps.model import EvalModel, expected_steps, load_model

_FOLDER = "key_tokens"


def find_key_tokens(
    run: RunDirectory, training: TrainingConfig, config: KeyTokensConfig, console: Console
) -> Path:
    """Write the key tokens that a run finds in its corpus, or in `data`, once; return the file.

    Raises UserError for bad input, or if there are too few key tokens; Stopped after a signal.
    """
    out_of_memory = "short: there is not enough memory for the evaluator's window"
    with open_run(run, training, console, out_of_memory=out_of_memory) as session:
        return _find(session, config)


def _find(session: Session, config: KeyTokensConfig) -> Path:
    run, training, console = session.run, session.config, session.console
    steps = expected_steps(run, None if config.step is None else (config.step,))
    with errors_in("", UserError):  # before anything is loaded
        config.check_window(training.trained_at(steps[-1]).window)
    loaded = load_model(session, config.data, config.split)
    split: TokenSplit = getattr(loaded.corpus, config.split)
    step, params = loaded.one_checkpoint(config.step)
    window = training.trained_at(step).window
    name = config.name or f"{training.name}-{config.short}"
    path = loaded.corpus.folder / _FOLDER / f"{name}.json"
    keys = {"split", "short", "alpha", "beta", "max_documents", "seed"}
    settings = config.model_dump(include=keys) | {
        "stride": config.s,
        "corpus": loaded.corpus.fingerprint,
        "evaluator": Evaluator(run=training.name, step=step, window=window),
    }
    if path.exists():
        try:
            written = read_key_tokens(str(path))
        except ValueError as error:
            raise UserError(f"name: {error}; delete it, or choose another name") from None
        if any(getattr(written, key) != value for key, value in settings.items()):
            raise UserError(
                f"name: {path} holds key tokens of another evaluator or other settings; choose "
                "another name, or delete it"
            )
        print_message(console, f"{path}: already written")
        return path
    loaded.memory.check([window])
    bos_ids = loaded.corpus.tokenizer.bos_ids
    streams = make_streams(
        split.texts(),
        longest=config.short + config.s,
        max_documents=config.max_documents,
        bos="document" if bos_ids else "none",
        bos_ids=bos_ids,
        seed=config.seed,
    )
    print_overview(
        console,
        f"key tokens of {training.name}",
        {
            "checkpoint": f"{run.path}, step {step}; window {window:,} tokens",
            "devices": session.describe_devices(),
            config.split: f"{len(streams.tokens):,} of {len(split):,} "
            f"document{'s' * (len(split) != 1)}, {sum(map(len, streams.tokens)):,} tokens",
            "near context": f"{config.short:,} to {config.short + config.s - 1:,} tokens",
            "key tokens": f"log p more than {config.alpha:g} above that of near context, and above "
            f"{config.beta:g} (nats)",
        },
    )
    whole, near = _read(loaded, params, config, step, streams.tokens)
    documents = []
    for index, log_p, near_log_p in zip(streams.indices, whole, near, strict=True):
        (places,) = np.nonzero(is_key(log_p, near_log_p, config.alpha, config.beta))
        tokens = tuple((places - len(bos_ids)).tolist())
        documents.append(DocumentKeys(index=index, id=split.ids[index], tokens=tokens))
    result = KeyTokens(
        **settings,
        candidates=sum(int(np.isfinite(other).sum()) for other in near),
        documents=tuple(documents),
    )
    count, of = result.count, result.candidates
    shares = f"{count:,} of {of:,} tokens ({100 * count / of:.2g}%) are key tokens"
    if count < MIN_KEY_TOKENS:
        raise UserError(
            f"alpha: {shares}; fewer than {MIN_KEY_TOKENS} say little: take a smaller alpha or "
            "short, or read more documents, or longer ones"
        )
    with file_errors(path, "written"):
        path.parent.mkdir(exist_ok=True)
        write_text(path, result.model_dump_json())
    print_wrapped(console, f"{shares}; written to {path}")
    return path


def _read(
    loaded: EvalModel,
    params: Params,
    config: KeyTokensConfig,
    step: int,
    streams: Sequence[NDArray[np.int32]],
) -> list[list[NDArray[np.float32]]]:
    """Return each token's log-probability by document: with the whole window, and near context."""
    sizes, layers = [len(stream) for stream in streams], loaded.training.rotary_layers
    window, scaling, map_, _ = loaded.training.trained_at(step)
    # more context than any target has of near context
    least = max(-(-window // 2), config.short + config.s)
    # windows, their length, and how many targets at their end count
    passes = (
        (whole_windows(sizes, window, least), window, window),
        (near_windows(sizes, config.short, config.s), config.short + config.s - 1, config.s),
    )
    reader = Reader(
        loaded.nll_of_last,
        params,
        loaded.memory.window,
        row_multiple=lambda n: loaded.placement_at(n).row_shards,
    )
    bar = progress_bar(loaded.session.console, TaskProgressColumn)
    total = sum(length * len(windows) for windows, length, _ in passes)
    task = bar.add_task("reading", total=total, now="")
    log_p = []
    with bar:
        for windows, length, last in passes:

            def tick(scores: Scores, length: int = length) -> None:
                stopping.check()
                bar.update(task, advance=len(scores.nll) * length, now=f"{length:,} tokens")

            batch = EvalBatch(
                length=length,
                windows=len(windows),
                windows_hash="",  # no two batches are compared
                tokens=functools.partial(tokens_of, windows, length, streams),
                rotary=rotary_at(length, layers, scaling, map_, layers.geometry.train_length),
            )
            ((scores, _),) = reader.read([batch], last, [batch.windows], tick)
            log_p.append(log_probabilities(windows, length, sizes, np.asarray(scores.nll)))
    return log_p


class TargetWindow(NamedTuple):
    """A window, and the positions of the targets whose log-probability is taken in it.

    start: index of the window's first input in its document, whose end the window may exceed.
    """

    document: int
    start: int
    first: int
    last: int


def whole_windows(sizes: Sequence[int], length: int, least: int) -> list[TargetWindow]:
    """Return windows of documents whose targets have all, or more than `least`, before them."""
    windows = []
    for document, size in enumerate(sizes):
        previous = 0
        for end in (*range(length, size - 1, length - least), size - 1):
            start = max(end - length, 0)
            windows.append(TargetWindow(document, start, previous - start + 1, end - start))
            previous = end
    return windows


def near_windows(sizes: Sequence[int], short: int, stride: int) -> list[TargetWindow]:
    """Return windows whose targets have `short` to `short + stride − 1` tokens before them."""
    length = short + stride - 1
    return [
        TargetWindow(document, start, short, min(length, size - 1 - start))
        for document, size in enumerate(sizes)
        for start in range(0, size - short, stride)
    ]


def tokens_of(
    windows: Sequence[TargetWindow], length: int, streams: Sequence[NDArray[np.integer]]
) -> Int32[np.ndarray, "W n_plus_1"]:
    """Return the windows' tokens, those beyond a document's end repeating its last one."""
    places = np.arange(length + 1)
    rows = [streams[window.document].take(window.start + places, mode="clip") for window in windows]
    return np.stack(rows).astype(np.int32)


def log_probabilities(
    windows: Sequence[TargetWindow],
    length: int,
    sizes: Sequence[int],
    nll: Float32[np.ndarray, "W last"],
) -> list[NDArray[np.float32]]:
    """Return each token's log-probability by document, NaN where no window gives it."""
    log_p = [np.full(size, np.nan, np.float32) for size in sizes]
    unread = length - nll.shape[1]  # targets of a window, at its start
    for (document, start, first, last), row in zip(windows, nll, strict=True):
        log_p[document][start + first : start + last + 1] = -row[first - 1 - unread : last - unread]
    return log_p


def is_key(
    whole: Float32[np.ndarray, " N"], near: Float32[np.ndarray, " N"], alpha: float, beta: float
) -> Bool[np.ndarray, " N"]:
    """Return which tokens are key tokens, given their log-probabilities; NaN counts as none."""
    return (whole - near > alpha) & (whole > beta)
