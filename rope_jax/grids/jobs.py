"""The jobs of a grid: the command of each, and whether it is done.

A job is done if the file with which its command ends is there and was made with the settings of
the grid from the present results of the jobs before it, as recorded in grid.json.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rope_jax.config.fit import FitConfig
from rope_jax.config.inherit import load_training
from rope_jax.config.keys import different_keys
from rope_jax.config.load import load
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.invocation import COMMANDS
from rope_jax.rope.files import read_limited
from rope_jax.runs.directory import RunDirectory
from rope_jax.sealed import write_text

RECORD = "grid.json"
_ADVICE = "delete this folder, or give the entry another name"
_MOST_BYTES = 2**24  # of a record or a summary


class NotReady(UserError):
    """A config needs the results of other jobs, which are not there yet."""


@dataclass(frozen=True)
class Job:
    """One command of a grid. name: such as demo-s0/train, unique, and the path of its log.

    settings: everything that decides the result, except the results of the jobs in `needs`, which
    must be done before this one.
    result_name: the file that the command writes at its end, and that depends on all it did.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]
    overrides: tuple[str, ...]
    needs: tuple["Job", ...]

    result_name: ClassVar[str]

    @property
    def follows(self) -> tuple["Job", ...]:
        """Jobs that must have ended before this one, whether they succeeded or not."""
        return self.needs

    @property
    def result(self) -> Path:
        """The file that the command writes at its end."""
        return self.folder / self.result_name

    def words(self) -> list[str]:
        """Return the name of the command, and the arguments before `overrides`."""
        raise NotImplementedError

    def command(self, root: Path | None) -> list[str]:
        """Return the command line, of the repository's scripts, or of the package without one."""
        name, *arguments = self.words()
        start = ["-m", "rope_jax", name] if root is None else [str(root / COMMANDS[name].script)]
        return [sys.executable, *start, *arguments, *self.overrides]

    def log(self, logs: Path) -> Path:
        """Return the file of the command's output, in the folder of all logs."""
        return logs / f"{self.name}.log"

    def is_done(self) -> bool:
        """Whether running it would change nothing. UserError: its folder has something else."""
        return self.is_finished() and self.recorded() == self._make_record()

    def is_finished(self) -> bool:
        """Whether the command has left its result, with whatever settings."""
        return self.result.is_file()

    def record(self) -> None:
        """Record that the job was done with its present settings and inputs. Raises OSError."""
        text = json.dumps(self._make_record(), indent=1, ensure_ascii=False) + "\n"
        write_text(self.folder / RECORD, text)

    def recorded(self) -> dict[str, Any]:
        """Return what a grid recorded of the result; {} if it was made by hand."""
        return _read_json(self.folder / RECORD)

    def ready(self) -> "Job":
        """Return the job as it can be run once all that it follows has ended."""
        return self

    def _check_inputs(self, made: str) -> None:
        """UserError if the result was recorded with other inputs than there are now."""
        if (old := self.recorded()) and old.get("inputs") != self._make_record()["inputs"]:
            raise UserError(
                f"{self.folder}: was {made} another {self.needs[0].folder}, which has been made "
                f"anew; {_ADVICE}"
            )

    def _make_record(self) -> dict[str, Any]:
        return {
            # through JSON, which has lists for tuples
            "settings": json.loads(json.dumps(self.settings)),
            "inputs": {job.name: _digest(job.result) for job in self.follows},
            "result": _digest(self.result),
        }


@dataclass(frozen=True)
class TrainJob(Job):
    """A training run; one that was trained by hand with the same config counts."""

    config: Path

    result_name: ClassVar[str] = "metrics.jsonl"

    def words(self) -> list[str]:
        return ["train", str(self.config)]

    def load_config(self) -> Config:
        """Return the run's config; NotReady if what it starts from may be missing."""
        try:
            return load_training(self.config, self.overrides)
        except UserError as error:
            if self.needs:
                raise NotReady(str(error)) from None
            raise

    def is_finished(self) -> bool:
        config = self.load_config()
        run = RunDirectory(self.folder)
        run.check_available(config)
        return self.result.is_file() and (run.checkpoints / str(config.last_step)).is_dir()

    def is_done(self) -> bool:
        if finished := self.is_finished():
            self._check_inputs("started from")
        return finished


@dataclass(frozen=True)
class FitJob(Job):
    """A fit on a trained run; one that was made by hand with the same settings counts."""

    run: TrainJob

    result_name: ClassVar[str] = "summary.json"

    def words(self) -> list[str]:
        return ["fit", str(self.run.folder)]

    def load_config(self) -> FitConfig:
        """Return the settings of the fit; NotReady without the file that it starts from."""
        try:
            return load(FitConfig, None, self.overrides)
        except UserError as error:
            raise NotReady(str(error)) from None

    def is_finished(self) -> bool:
        wanted, file = self.load_config(), self.folder / "fit.yaml"
        if not file.exists() and not self.result.exists():
            return False
        if different := different_keys(wanted, load(FitConfig, file)):
            keys = dict.fromkeys(key.partition(".")[0] for key in different)
            raise UserError(
                f"{self.folder}: holds a fit with another {', '.join(keys)}; "
                "give this one another name, or delete that folder"
            )
        return self.result.is_file()

    def is_done(self) -> bool:
        if not self.is_finished():
            return False
        # The command leaves a finished fit as it is, whatever it was made on.
        if self.recorded().get("result") == _digest(self.result):
            self._check_inputs("made on")
            return True
        step = self.load_config().step or self.run.load_config().last_step
        if (found := _read_json(self.result).get("step")) != step:
            raise UserError(
                f"{self.folder}: was made at step {found} of {self.run.folder}, not at its step "
                f"{step}; {_ADVICE}"
            )
        return True


@dataclass(frozen=True)
class SweepJob(Job):
    """A sweep of a run or a fit.

    One made by hand with the same settings, values of fits included, on the last checkpoint counts.
    """

    config: Path
    run: TrainJob

    result_name: ClassVar[str] = "summary.json"

    def words(self) -> list[str]:
        return ["sweep", str(self.run.folder), "--sweep", str(self.config)]

    def is_done(self) -> bool:
        if not self.is_finished() or self.recorded():
            return super().is_done()
        try:
            wanted = load(SweepConfig, self.config, self.overrides)
            found = load(SweepConfig, self.folder / "sweep.yaml")
        except UserError:
            return False
        if "bos" not in wanted.model_fields_set:  # it follows from the run's tokenizer
            wanted = wanted.model_copy(update={"bos": found.bos})
        step = self.run.load_config().last_step
        return found == wanted and _read_json(self.result).get("step") == step


@dataclass(frozen=True)
class CompareJob(Job):
    """The comparison of all sweeps, or of those that are done if some failed."""

    sweeps: tuple[SweepJob, ...]

    result_name: ClassVar[str] = "comparison.csv"

    @property
    def follows(self) -> tuple[Job, ...]:
        return self.sweeps

    def words(self) -> list[str]:
        folders = [str(sweep.folder) for sweep in self.sweeps]
        # more of the sweeps may be done than the last time
        return ["compare", *folders, "replace=true"]

    def ready(self) -> "CompareJob":
        """Return the comparison of the sweeps that are done. UserError: there are none."""
        done = []
        for sweep in self.sweeps:
            with contextlib.suppress(UserError):
                done += [sweep] * sweep.is_done()
        if not done:
            raise UserError("no sweep is done, so there is nothing to compare")
        return replace(self, sweeps=tuple(done))


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_limited(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
