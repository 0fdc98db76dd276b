"""What a checkpoint was trained on and how: recorded in it, and checked before it is used."""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_jax.config.differences import different_keys
from rope_jax.config.training import Config
from rope_jax.data.storage import Corpus
from rope_jax.errors import UserError
from rope_jax.rope.files import read_limited
from rope_jax.runs.directory import RunDirectory
from rope_jax.training.resuming import same_until

# Keys that may change later: they do not influence what the parameters of a step are. A sweep may
# choose another implementation of attention.
_FREE = ("name", "log_every_steps", "checkpoint.", "validation.", "sweep", "model.attention")
# Where Orbax puts the JSON item `fingerprint` of a checkpoint.
_RECORD = Path("fingerprint", "metadata")
_MOST_BYTES = 2**24


@dataclass(frozen=True)
class Provenance:
    """What a run's checkpoints come from."""

    corpus: str | None
    """The corpus's fingerprint; None for an imported checkpoint, whose texts are unknown."""
    config: dict[str, Any]
    """The config as JSON values. A later version of the package may not accept it."""

    def differences(self, config: Config, step: int) -> list[str]:
        """Return the keys in which `config` differs and that influence the parameters at a step."""
        try:
            recorded = Config.model_validate(self.config)
        except ValueError:  # another version's config, whose keys cannot be compared
            return []
        different = [key for key in different_keys(config, recorded) if not key.startswith(_FREE)]
        if different and same_until(config, recorded, step, but_for=_FREE):
            return []
        return different


def provenance_of(config: Config, corpus: Corpus) -> Provenance:
    """Return the provenance of the checkpoints that a run saves."""
    return Provenance(corpus.fingerprint, config.model_dump(mode="json"))


def check_provenance(
    run: RunDirectory, config: Config, corpus: Corpus | None, warn: Callable[[str], None]
) -> None:
    """UserError unless the run's checkpoints were trained with this config on this corpus.

    corpus: None if none of its texts are read; then only the config is checked, as it is for an
    imported checkpoint. Damaged checkpoints are passed over: restoring detects them.
    """
    steps = [path for path in run.checkpoints.glob("*") if path.name.isdecimal() and path.is_dir()]
    records = {path: record for path in sorted(steps) if (record := recorded_provenance(path))}
    if corpus is not None and config.imported is None:
        if steps and not records and run.recorded_corpus() is None:
            raise UserError(
                f"{run.environment_file}: missing or damaged, and no checkpoint records which "
                "corpus it was trained on; restore the file from a copy, or train the run again"
            )
        _check_corpus(run, corpus, {record.corpus for record in records.values()}, warn)
    for path, record in records.items():
        if different := record.differences(config, int(path.name)):
            raise UserError(
                f"{run.config_file}: has another {', '.join(different)} than the one that the "
                f"checkpoint of step {path.name} was trained with; put it back as it was"
            )


def _check_corpus(
    run: RunDirectory, corpus: Corpus, recorded: set[str | None], warn: Callable[[str], None]
) -> None:
    """UserError unless this is the corpus that the run began with, or that checkpoints record.

    Of another corpus, the test split may contain training text.
    """
    began_with = run.recorded_corpus()
    if recorded and {began_with} != recorded:  # they have a checksum, and it has none
        warn(
            f"{run.environment_file}: missing or damaged; the checkpoints' own record shows which "
            "corpus the run began with"
        )
        began_with = None
    if {began_with, *recorded} - {None, corpus.fingerprint}:
        raise UserError(
            f"{run.path}: the corpus has changed since the run began (other files, or "
            "another Python): its test split may hold what the model was trained on"
        )


def recorded_provenance(checkpoint: Path) -> Provenance | None:
    """Return what a checkpoint's folder records; None if it is damaged or records nothing."""
    try:
        content = json.loads(read_limited(checkpoint / _RECORD, _MOST_BYTES))
        check_record(content, int(checkpoint.name))
        corpus, config = content["corpus"], content["config"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return Provenance(corpus, config) if isinstance(corpus, str | None) else None


def sealed_record(
    step: int, fingerprints: dict[str, list[int]], provenance: Provenance | None
) -> dict[str, Any]:
    """Return the record of one checkpoint as JSON values, with a checksum."""
    content: dict[str, Any] = {"step": step, **fingerprints}
    if provenance is not None:
        content |= {"corpus": provenance.corpus, "config": provenance.config}
    return content | {"crc32": _crc32(content)}


def check_record(content: dict[str, Any], step: int) -> None:
    """ValueError if the record of a checkpoint has changed or is that of another step."""
    if "crc32" not in content:  # written by an early version
        return
    rest = {name: value for name, value in content.items() if name != "crc32"}
    if content["crc32"] != _crc32(rest):
        raise ValueError("its record is not the one that was saved")
    if content["step"] != step:
        raise ValueError(f"it is the checkpoint of step {content['step']}")


def _crc32(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
