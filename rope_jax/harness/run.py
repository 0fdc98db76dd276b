"""Run tasks of lm-evaluation-harness on a run, with several scalings and at several lengths."""

import contextlib
import difflib
import hashlib
import io
import itertools
import json
import logging
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from lm_eval import defaults, evaluator, simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable
from rich.console import Console

from rope_jax.config.entries import SweepEntry
from rope_jax.config.harness import HarnessConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import print_message, print_wrapped
from rope_jax.errors import UserError, errors_in
from rope_jax.generation.opening import OpenedModel, open_model
from rope_jax.harness.model import HarnessModel
from rope_jax.harness.results import HarnessRow, harness_table, result_rows, write_rows
from rope_jax.report.table import print_table
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import locked, replacing_folder, write_text
from rope_jax.session import open_run
from rope_jax.sweeps.journal import model_identity

# It draws random numbers once, which must not be between seed and task. What it cannot download it
# tells the stderr of this moment, then and later.
with contextlib.redirect_stderr(io.StringIO()):
    import nltk  # noqa: F401
# git would say "fatal" outside of a repository, and nothing here names the commit
evaluator.get_git_commit_hash = lambda: None

_SHORTEST_CHAIN = 1024  # below about 700 tokens, ruler_vt looks for a length without end
_RESAMPLES = 1000  # for standard errors of what is no mean


def harness_run(
    run: RunDirectory, training: TrainingConfig, config: HarnessConfig, console: Console
) -> Path:
    """Measure, print a table, and return the folder with the results, RUN/harness/<name>/.

    The harness keeps answers in RUN/harness/.<name>.cache/, from where the same call resumes.
    Raises UserError, or Stopped after a signal.
    """
    for chatty in ("lm_eval", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    folder = run.path / "harness" / config.name
    advice = "lengths: there is not enough memory; lower batch_size, or leave out the longest"
    busy = f"{folder}: another process is measuring in it; wait for it, or choose another name"
    with (
        open_run(run, training, console, out_of_memory=advice) as session,
        locked(folder.with_name(f".{config.name}.lock"), busy),
        TemporaryDirectory() as tokenizer,
    ):
        # tasks read it there, to make texts of a given length
        write_text(Path(tokenizer, "tokenizer.json"), session.tokenizer.json())
        manager = _find_tasks(config, tokenizer)
        opened = open_model(session, config.scalings, config.step)
        lengths = config.lengths or (opened.trained.window,)
        for entry, length in itertools.product(config.scalings, lengths):
            opened.rotary(entry, length, "scalings")  # refused before anything is measured
        with replacing_folder(folder) as new:
            rows = _measure(opened, config, lengths, manager, new / "samples")
            write_rows(new, rows)
    console.print()
    print_wrapped(console, "; ".join(print_table(console, harness_table(rows, config.name))), "dim")
    print_message(console, f"{folder}: results.csv, and samples/ with all questions and answers")
    if curves := sorted(str(path.parent) for path in run.evals.glob("[!.]*/results.csv")):
        print_message(console, f"perplexity of this run: {', '.join(curves)}")
    return folder


def _measure(
    opened: OpenedModel,
    config: HarnessConfig,
    lengths: tuple[int, ...],
    manager: TaskManager,
    samples: Path,
) -> list[HarnessRow]:
    """Return what every entry reaches in every task; write the samples as JSON lines."""
    console, rows = opened.session.console, list[HarnessRow]()
    model = HarnessModel(opened, config.scalings[0], lengths[0], config.batch_size)
    cache = opened.session.run.path / "harness" / f".{config.name}.cache"
    samples.mkdir()
    for length in lengths:
        # all of them first, since some may fail
        loaded = {name: _load(manager, name, length, console) for name in config.tasks}
        for name, tasks in loaded.items():
            for entry in config.scalings:
                model.read_with(entry, length)
                print_message(console, f"{name}, {length:,} tokens, {entry.label}", "dim")
                began = time.perf_counter()
                results = simple_evaluate(
                    model,
                    tasks=tasks,
                    num_fewshot=config.num_fewshot,
                    limit=config.limit,
                    apply_chat_template=config.apply_chat_template,
                    use_cache=str(cache / _identity(opened, entry, length)),
                    bootstrap_iters=_RESAMPLES,
                    task_manager=manager,
                )
                seconds = round(time.perf_counter() - began, 2)
                rows += result_rows(results, entry.label, length, opened.step, seconds)
                for task, of_task in results["samples"].items():
                    lines = [json.dumps(x, default=handle_non_serializable) for x in of_task]
                    path = samples / f"{task.replace('/', '-')}-{entry.label}-{length}.jsonl"
                    write_text(path, "\n".join([*lines, ""]))
    return rows


def _identity(opened: OpenedModel, entry: SweepEntry, length: int) -> str:
    """Return a name that differs for answers that may differ; the harness adds the question.

    Entries that read alike, as `auto` factors up to the window, share theirs.
    """
    session, rotary = opened.session, opened.rotary(entry, length)
    model = model_identity(session.run, session.config, opened.step)
    about = f"{model} {session.tokenizer.name} {length} {jax.tree.structure(rotary)}"
    digest = hashlib.sha256(about.encode(errors="replace"))
    for leaf in jax.tree.leaves(rotary):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:32]


def _find_tasks(config: HarnessConfig, tokenizer: str) -> TaskManager:
    """Return what loads tasks. UserError: one is unknown."""
    names = [task for task in config.tasks if not Path(task).is_file()]
    manager = TaskManager(metadata={"tokenizer": tokenizer}, include_defaults=bool(names))
    for name in names:
        if name not in manager.all_tasks:
            close = difflib.get_close_matches(name, manager.all_tasks)
            advice = f"did you mean {', '.join(close)}?" if close else "see lm_eval ls tasks"
            raise UserError(f"tasks: the harness has no {name}; {advice}")
    return manager


def _load(manager: TaskManager, name: str, length: int, console: Console) -> list[Any]:
    """Return a task, a group or the tasks of a tag, with texts as if this were the only one.

    UserError: it cannot be loaded.
    """
    if name in ("ruler", "ruler_vt") and length < _SHORTEST_CHAIN:
        raise UserError(f"lengths: {length:,}: ruler_vt needs at least {_SHORTEST_CHAIN:,} tokens")
    print_message(console, f"loading {name} for {length:,} tokens", "dim")
    manager.metadata["max_seq_lengths"] = [length]
    random.seed(defaults.DEFAULT_RANDOM_SEED)
    np.random.seed(defaults.DEFAULT_OTHER_SEED)  # noqa: NPY002  (tasks draw from it)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        errors_in(f"tasks: {name}: cannot be loaded: ", UserError, Exception),
    ):
        loaded = manager.load([name])
    return [*loaded["groups"].values()][:1] or [*loaded["tasks"].values()]
