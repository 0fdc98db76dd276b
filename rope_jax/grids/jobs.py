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
    """The config of a run that needs the results of other jobs, and they are not there yet."""


@dataclass(frozen=True)
class Job:
    """One command of a grid.

    name: unique in the grid, such as demo-s0/train; also the path of its log.
    folder: what the command writes to: a run, a fit, a sweep or a comparison.
    settings: everything that decides the result, except the results of the jobs in `needs`.
    overrides: `key=value` arguments of the command.
    needs: jobs that must be done before this one.
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
        """The file that the command leaves."""
        return self.folder / self.result_name

    def words(self) -> list[str]:
        """Return the name of the command, and the arguments before `overrides`."""
        raise NotImplementedError

    def command(self, root: Path | None) -> list[str]:
        """Return the command line. root: of the repository; None: calls the installed command."""
        name, *arguments = self.words()
        start = ["-m", "rope_jax", name] if root is None else [str(root / COMMANDS[name].script)]
        return [sys.executable, *start, *arguments, *self.overrides]

    def log(self, logs: Path) -> Path:
        """Return the file of the command's output, in the folder of all logs."""
        return logs / f"{self.name}.log"

    def is_done(self) -> bool:
        """Whether running it would change nothing. UserError: its folder has something else."""
        if not self.is_finished():
            return False
        recorded = _read_json(self.folder / RECORD)
        return recorded == self._make_record() if recorded else self._counts_without_record()

    def is_finished(self) -> bool:
        """Whether the command has left its result, with whatever settings."""
        return self.result.is_file()

    def record(self) -> None:
        """Record that the job was done with its present settings and inputs. Raises OSError."""
        text = json.dumps(self._make_record(), indent=1, ensure_ascii=False) + "\n"
        write_text(self.folder / RECORD, text)

    def ready(self) -> "Job":
        """Return the job as it can be run once all that it follows has ended."""
        return self

    def _counts_without_record(self) -> bool:
        """Whether a finished result that no grid recorded is this job's."""
        return False

    def _check_inputs(self, recorded: Mapping[str, Any], made: str) -> None:
        """UserError if the result was recorded with other inputs than there are now."""
        if recorded and recorded.get("inputs") != self._make_record()["inputs"]:
            sources = " and ".join(str(job.folder) for job in self.needs)
            raise UserError(
                f"{self.folder}: was {made} another {sources}, which has been made anew; {_ADVICE}"
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
        """Return the run's config. NotReady: it is wrong, perhaps because of the run in `needs`."""
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
        if self.is_finished():
            self._check_inputs(_read_json(self.folder / RECORD), "started from")
            return True
        return False


@dataclass(frozen=True)
class FitJob(Job):
    """A fit on a trained run; one that was made by hand with the same settings counts."""

    run: TrainJob

    result_name: ClassVar[str] = "summary.json"

    @property
    def strategy(self) -> Path:
        """The strategy file that the command writes."""
        return self.folder / "strategy.json"

    def words(self) -> list[str]:
        return ["fit", str(self.run.folder)]

    def load_config(self) -> FitConfig:
        """Return the settings of the fit. NotReady: the strategy file of its start is not there."""
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
        recorded = _read_json(self.folder / RECORD)
        if recorded.get("result") == _digest(self.result):
            self._check_inputs(recorded, "made on")
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
    """A sweep of a run, or of a fit on it.

    One made by hand with the same settings, which include the values of a fit, counts if it
    measured the last checkpoint.
    """

    config: Path
    run: TrainJob

    result_name: ClassVar[str] = "summary.json"

    def words(self) -> list[str]:
        return ["sweep", str(self.run.folder), "--sweep", str(self.config)]

    def _counts_without_record(self) -> bool:
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
