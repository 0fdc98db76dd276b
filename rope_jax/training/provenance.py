"""What a checkpoint was trained on and how, and whether a run may go on from it."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rope_jax.config.inherit import saved_steps
from rope_jax.config.schema import different_keys
from rope_jax.config.training import TrainingConfig
from rope_jax.data.storage import Corpus
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.optimizer import learning_rate

# Keys that may change later: they do not influence what the parameters of a step are. A sweep may
# choose another implementation of attention.
_FREE = ("name", "log_every_steps", "checkpoint.", "validation.", "sweep", "model.attention")
_RECORD = Path("fingerprint", "metadata")  # where Orbax puts the JSON item of a checkpoint
# Keys that say how long the stages are and which learning rate they have.
_PLANNED = re.compile(r"optim\.warmup_steps|stages\..*")
_STEPS = re.compile(r"stages\.\d+\.steps")

Record = dict[str, Any]
"""JSON values that a checkpoint records: `corpus`, the fingerprint of its texts, which are unknown
(None) for an imported one, and `config`, which a later version of the package may reject."""


def provenance_of(config: TrainingConfig, corpus: Corpus | None) -> Record:
    """Return what every checkpoint of a run records: corpus and config."""
    fingerprint = None if corpus is None else corpus.fingerprint
    return {"corpus": fingerprint, "config": config.model_dump(mode="json")}


def check_config(record: Record, config: TrainingConfig, step: int, file: str | Path) -> None:
    """UserError if `config`, read from `file`, differs in what influences a step's parameters."""
    try:
        recorded = TrainingConfig.model_validate(record["config"])
    except ValueError:  # another version's config, whose keys cannot be compared
        return
    if changed := changed_keys(config, recorded, step, _FREE):
        raise UserError(
            f"{file}: has another {', '.join(changed)} than the one that the checkpoint of "
            f"step {step} was trained with; put it back as it was"
        )


def check_provenance(run: RunDirectory, config: TrainingConfig, corpus: Corpus | None) -> None:
    """UserError unless the run's checkpoints were trained with this config on this corpus.

    corpus: None if none of its texts are read; then only the config is checked, as for an imported
        checkpoint. Damaged checkpoints are passed over: restoring detects them.
    """
    checkpoints = {step: run.checkpoints / str(step) for step in saved_steps(run.checkpoints)}
    records = {
        n: record for n, path in checkpoints.items() if (record := recorded_provenance(path))
    }
    if corpus is not None and config.imported is None:
        began_with = {run.recorded_corpus(), *(record["corpus"] for record in records.values())}
        # of another corpus, the test split may hold training text
        if began_with - {None, corpus.fingerprint}:
            raise UserError(
                f"{run.path}: the corpus has changed since the run began (other files, or "
                "another Python): its test split may hold what the model was trained on"
            )
    for step, record in records.items():
        check_config(record, config, step, run.config_file)


def recorded_provenance(checkpoint: Path) -> Record | None:
    """Return what a checkpoint's folder records, or None if it is damaged."""
    try:
        record: Record = json.loads((checkpoint / _RECORD).read_bytes())
        check_record(record, int(checkpoint.name))
        return {name: record[name] for name in ("corpus", "config")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def check_record(record: Record, step: int) -> None:
    """ValueError if the record of a checkpoint is that of another step."""
    if record["step"] != step:
        raise ValueError(f"it is the checkpoint of step {record['step']}")


def changed_keys(
    new: TrainingConfig, old: TrainingConfig, step: int, free: tuple[str, ...] = ()
) -> list[str]:
    """Return the keys by which two configs differ in their first `step` steps.

    Stages may differ if these steps have the same windows and learning rates. free: beginnings of
    keys that may differ.
    """
    different = [key for key in different_keys(new, old) if not key.startswith(free)]
    if not different or not all(map(_PLANNED.fullmatch, different)):
        return different
    if not step or new.last_step < step:
        return different

    def begun(config: TrainingConfig) -> list[tuple[int, dict[str, Any]]]:
        # without `learning_rate`, which is compared as a number for every step
        return [
            (min(span.end, step), span.stage.model_dump(exclude={"steps", "learning_rate"}))
            for span in config.spans
            if span.begin < step
        ]

    steps = np.arange(step, dtype=np.float32)
    rates = (jax.vmap(learning_rate(config))(steps) for config in (new, old))
    is_same = begun(new) == begun(old) and np.array_equal(*rates)
    return [] if is_same else different


def explain_other(new: TrainingConfig, old: TrainingConfig, step: int) -> str | None:
    """Return why a run with another config cannot go on from a step, or None if it can."""
    is_softmax = new.model.backend.is_softmax and old.model.backend.is_softmax
    changed = changed_keys(new, old, step, ("model.attention",) if is_softmax else ())
    if not changed:
        return None
    if not all(_STEPS.fullmatch(key) for key in changed):
        return "give this one another name, or delete that folder"
    if new.last_step < step:
        return f"it has been trained to step {step:,} already"
    return (
        f"its learning rate is planned for {old.last_step:,} steps ({old.optim.schedule}), and "
        f"{new.last_step:,} would change the steps it has trained; keep them and give its config "
        "another stage, with a learning_rate of its own, or start a new run: name=NEW "
        f"init_from={Path(new.runs_dir) / new.name}"
    )
