"""The jobs of a grid: the command of each, and whether it is done.

A job is done if its folder has the result, made with the settings of the grid from the present
results of the jobs that it needs. What the folder itself does not tell is recorded in grid.json.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from rope_jax.config.fit import FitConfig
from rope_jax.config.inherit import load_training
from rope_jax.config.load import load
from rope_jax.config.schema import different_keys
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import write_text

_RECORD = "grid.json"
_ADVICE = "delete this folder, or give the entry another name"


@dataclass(frozen=True)
class Job:
    """One command of a grid. name: such as demo-s0/train, unique, and the path of its log.

    needs: the jobs whose results it reads; if `needs_all`, it runs only if all of them are done.
    settings: everything but the inputs that decides the result, if it is replaced where they or the
        inputs have changed; None: it is never replaced.
    result_name: the file that the command writes at its end, and that depends on all it did.
    """

    name: str
    folder: Path
    overrides: tuple[str, ...]
    needs: tuple["Job", ...]
    settings: Mapping[str, Any] | None = field(default=None, kw_only=True)

    needs_all: ClassVar[bool] = True
    result_name: ClassVar[str] = "summary.json"

    @property
    def result(self) -> Path:
        return self.folder / self.result_name

    def words(self) -> list[str]:
        """Return the name of the command, and the arguments before `overrides`."""
        raise NotImplementedError

    def command(self) -> list[str]:
        return [sys.executable, "-m", "rope_jax", *self.words(), *self.overrides]

    def log(self, logs: Path) -> Path:
        return logs / f"{self.name}.log"

    def ready(self) -> "Job":
        """Return the job as it can be run once all that it needs has ended."""
        return self

    def is_finished(self) -> bool:
        """Whether the command has left its result. UserError: its folder has something else."""
        return self.result.is_file()

    def is_done(self) -> bool:
        """Whether the job need not run again: its result is there, and its inputs are the same.

        A run or a fit made by hand counts, and is never replaced: UserError if the folder holds
        one with other settings, or one made from inputs that have changed since. What is replaced
        is done if its record still holds.
        """
        if not self.is_finished():
            return False
        if self.settings is not None:
            return self.recorded() == self._make_record()
        inputs = self.recorded().get("inputs", {})
        for job in self.needs:
            if inputs.get(job.name) not in (None, _digest(job.result)):
                raise UserError(
                    f"{self.folder}: was made from another {job.folder}, which has been made "
                    f"anew; {_ADVICE}"
                )
        return True

    def record(self) -> None:
        """Record what the result was made from. Raises OSError."""
        text = json.dumps(self._make_record(), indent=1, ensure_ascii=False) + "\n"
        write_text(self.folder / _RECORD, text)

    def recorded(self) -> dict[str, Any]:
        """Return what a grid recorded of the result; {} if it was made by hand."""
        return _read_json(self.folder / _RECORD)

    def _make_record(self) -> dict[str, Any]:
        inputs = {job.name: _digest(job.result) for job in self.needs}
        record = {} if self.settings is None else {"settings": self.settings}
        return record | {"inputs": inputs, "result": _digest(self.result)}


@dataclass(frozen=True)
class TrainJob(Job):
    """A training run. planned: its config as far as it is known before any job has run."""

    config: Path
    planned: TrainingConfig

    result_name: ClassVar[str] = "metrics.jsonl"

    @property
    def run(self) -> "TrainJob":
        """This job; of a fit, the run that it is made on."""
        return self

    def words(self) -> list[str]:
        return ["train", str(self.config)]

    def is_finished(self) -> bool:
        config = load_training(self.config, self.overrides)
        run = RunDirectory(self.folder)
        run.check_available(config)
        return self.result.is_file() and (run.checkpoints / str(config.last_step)).is_dir()


@dataclass(frozen=True)
class FitJob(Job):
    """A fit on a trained run."""

    run: TrainJob

    def words(self) -> list[str]:
        return ["fit", str(self.run.folder)]

    def is_finished(self) -> bool:
        wanted, file = load(FitConfig, None, self.overrides), self.folder / "fit.yaml"
        if file.exists() and (different := different_keys(wanted, load(FitConfig, file))):
            keys = dict.fromkeys(key.partition(".")[0] for key in different)
            raise UserError(f"{self.folder}: holds a fit with another {', '.join(keys)}; {_ADVICE}")
        if not (file.exists() and self.result.is_file()):
            return False
        step, made = wanted.step or self.run.planned.last_step, _read_json(self.result).get("step")
        if made != step:  # the command leaves a finished fit as it is
            raise UserError(
                f"{self.folder}: was made at step {made} of {self.run.folder}, not at its step "
                f"{step}; {_ADVICE}"
            )
        return True


@dataclass(frozen=True)
class SweepJob(Job):
    """A sweep of a run or a fit, made anew if its settings or its inputs have changed.

    A sweep made by hand counts as done if it has the same settings, including the values in the
    strategy files of fits, and read the run's last checkpoint.
    """

    config: Path
    run: TrainJob

    def words(self) -> list[str]:
        return ["sweep", str(self.run.folder), "--sweep", str(self.config)]

    def is_done(self) -> bool:
        if self.recorded() or not self.is_finished():
            return super().is_done()
        try:
            wanted = load(SweepConfig, self.config, self.overrides)
            made = load(SweepConfig, self.folder / "sweep.yaml")
        except UserError:
            return False
        if "bos" not in wanted.model_fields_set:  # it follows from the run's tokenizer
            wanted = wanted.model_copy(update={"bos": made.bos})
        step = _read_json(self.result).get("step")
        return made == wanted and step == self.run.planned.last_step


@dataclass(frozen=True)
class CompareJob(Job):
    """The comparison of all sweeps, or of those that are done if some failed."""

    needs_all: ClassVar[bool] = False
    result_name: ClassVar[str] = "comparison.csv"

    def words(self) -> list[str]:
        # replace: more of the sweeps may be done than the last time
        return ["compare", *(str(sweep.folder) for sweep in self.needs), "replace=true"]

    def ready(self) -> "CompareJob":
        """Return the comparison of the sweeps that are done. UserError: there are none."""
        done = []
        for sweep in self.needs:
            with contextlib.suppress(UserError):
                done += [sweep] * sweep.is_done()
        if not done:
            raise UserError("no sweep is done, so there is nothing to compare")
        return replace(self, needs=tuple(done))


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content
