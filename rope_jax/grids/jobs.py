"""The jobs of a grid: the command of each, and whether it is done."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from rope_jax.config.fit import FitConfig
from rope_jax.config.inherit import load_training
from rope_jax.config.load import load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory


@dataclass(frozen=True)
class Job:
    """One command of a grid. name: such as demo-s0/train, unique, and the path of its log.

    needs: the jobs whose results it reads; if `needs_all`, it runs only if all of them are done.
    result_name: the file that the command writes at its end.
    """

    name: str
    folder: Path
    overrides: tuple[str, ...]
    needs: tuple["Job", ...]

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

    def is_done(self) -> bool:
        """Whether the result is there, made with these settings, by a grid or by hand.

        UserError: the folder holds a run with other settings, which is never replaced.
        """
        raise NotImplementedError

    def _step(self) -> int | None:
        """The training step that the result states, or None."""
        try:
            step: int | None = json.loads(self.result.read_bytes())["step"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return step


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

    def is_done(self) -> bool:
        config = load_training(self.config, self.overrides)
        run = RunDirectory(self.folder)
        run.check_available(config)
        return self.result.is_file() and (run.checkpoints / str(config.last_step)).is_dir()


@dataclass(frozen=True)
class FitJob(Job):
    """A fit on a trained run; the command itself refuses a folder with another fit."""

    run: TrainJob

    def words(self) -> list[str]:
        return ["fit", str(self.run.folder)]

    def is_done(self) -> bool:
        file = self.folder / "fit.yaml"
        if not file.exists():
            return False
        wanted = load(FitConfig, None, self.overrides)
        step = wanted.step or self.run.planned.last_step
        return load(FitConfig, file) == wanted and self._step() == step


@dataclass(frozen=True)
class SweepJob(Job):
    """A sweep of a run or a fit, made anew if its settings have changed.

    Its settings include the values in the strategy files of fits.
    """

    config: Path
    run: TrainJob

    def words(self) -> list[str]:
        return ["sweep", str(self.run.folder), "--sweep", str(self.config)]

    def is_done(self) -> bool:
        try:
            wanted = load(SweepConfig, self.config, self.overrides)
            made = load(SweepConfig, self.folder / "sweep.yaml")
        except UserError:
            return False
        # What follows from the run is in the file as well.
        open_keys = {key for key in SweepConfig.model_fields if getattr(wanted, key) is None}
        open_keys |= {"bos"} - wanted.model_fields_set
        wanted = wanted.model_copy(update={key: getattr(made, key) for key in open_keys})
        return made == wanted and self._step() == self.run.planned.last_step


@dataclass(frozen=True)
class CompareJob(Job):
    """The comparison of all sweeps, or of those that are done; made anew each time."""

    needs_all: ClassVar[bool] = False
    result_name: ClassVar[str] = "comparison.csv"

    def words(self) -> list[str]:
        return ["compare", *(str(sweep.folder) for sweep in self.needs), "replace=true"]

    def ready(self) -> "CompareJob":
        """Return the comparison of the sweeps that are done. UserError: there are none."""
        if not (done := tuple(sweep for sweep in self.needs if sweep.is_done())):
            raise UserError("no sweep is done, so there is nothing to compare")
        return replace(self, needs=done)

    def is_done(self) -> bool:
        return False
