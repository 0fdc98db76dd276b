"""What a checkpoint was trained on and how, and whether a run may go on from it."""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

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
    different = [key for key in different_keys(config, recorded) if not key.startswith(_FREE)]
    if different and not same_until(config, recorded, step, but_for=_FREE):
        raise UserError(
            f"{file}: has another {', '.join(different)} than the one that the checkpoint of "
            f"step {step} was trained with; put it back as it was"
        )


def check_provenance(run: RunDirectory, config: TrainingConfig, corpus: Corpus | None) -> None:
    """UserError unless the run's checkpoints were trained with this config on this corpus.

    corpus: None if none of its texts are read; then only the config is checked, as for an imported
        checkpoint. Damaged checkpoints are passed over: restoring detects them.
    """
    paths = [p for p in run.checkpoints.glob("*") if p.name.isdecimal() and p.is_dir()]
    records = {int(path.name): r for path in paths if (r := recorded_provenance(path))}
    if corpus is not None and config.imported is None:
        began_with = {run.recorded_corpus(), *(record["corpus"] for record in records.values())}
        # of another corpus, the test split may hold training text
        if began_with - {None, corpus.fingerprint}:
            raise UserError(
                f"{run.path}: the corpus has changed since the run began (other files, or "
                "another Python): its test split may hold what the model was trained on"
            )
    for step in sorted(records):
        check_config(records[step], config, step, run.config_file)


def recorded_provenance(checkpoint: Path) -> Record | None:
    """Return what a checkpoint's folder records; None if it is damaged or records nothing."""
    try:
        record: Record = json.loads((checkpoint / _RECORD).read_bytes())
        check_record(record, int(checkpoint.name))
        is_valid = isinstance(record["corpus"], str | None) and "config" in record
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return record if is_valid else None


def sealed_record(content: Record) -> Record:
    """Return the record of one checkpoint with its checksum."""
    return content | {"crc32": zlib.crc32(json.dumps(content, sort_keys=True).encode())}


def check_record(record: Record, step: int) -> None:
    """ValueError if the record of a checkpoint has changed or is that of another step."""
    if "crc32" not in record:  # written by an early version
        return
    if record != sealed_record({name: record[name] for name in record if name != "crc32"}):
        raise ValueError("its record is not the one that was saved")
    if record["step"] != step:
        raise ValueError(f"it is the checkpoint of step {record['step']}")


def same_until(
    new: TrainingConfig, old: TrainingConfig, step: int, *, but_for: tuple[str, ...] = ()
) -> bool:
    """Whether the first `step` steps of two configs have the same windows and learning rates.

    but_for: beginnings of keys that may differ besides.
    """

    def begun(config: TrainingConfig) -> list[tuple[int, dict[str, Any]]]:
        # without `learning_rate`, which is compared as a number for every step
        return [
            (min(span.end, step), span.stage.model_dump(exclude={"steps", "learning_rate"}))
            for span in config.spans
            if span.begin < step
        ]

    different = (key for key in _different(new, old) if not key.startswith(but_for))
    if new.last_step < step or not all(map(_PLANNED.fullmatch, different)):
        return False
    steps = np.arange(step, dtype=np.float32)
    rates = (jax.vmap(learning_rate(config))(steps) for config in (new, old))
    return begun(new) == begun(old) and bool(np.array_equal(*rates))


def _different(new: TrainingConfig, old: TrainingConfig) -> list[str]:
    """Return the keys that differ, but for the backend of a softmax attention."""
    same = new.model.backend.is_softmax and old.model.backend.is_softmax
    free = ("model.attention",) if same else ()
    return [key for key in different_keys(new, old) if key not in free]


def explain_other(new: TrainingConfig, old: TrainingConfig, step: int) -> str | None:
    """Return why a run with another config cannot go on from a step; None if it can."""
    different = _different(new, old)
    if not different or (step and same_until(new, old, step)):
        return None
    if not all(_STEPS.fullmatch(key) for key in different):
        return "give this one another name, or delete that folder"
    if new.last_step < step:
        return f"it has been trained to step {step:,} already"
    return (
        f"its learning rate is planned for {old.last_step:,} steps ({old.optim.schedule}), and "
        f"{new.last_step:,} would change the steps it has trained; keep them and give its config "
        "another stage, with a learning_rate of its own, or start a new run: name=NEW "
        f"init_from={Path(new.runs_dir) / new.name}"
    )
