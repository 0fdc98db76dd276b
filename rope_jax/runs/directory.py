"""A run's folder: what stands where in it, and whether it may be used."""

import importlib.metadata
import json
import platform
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rope_jax.config.load import dump, load
from rope_jax.config.training import Config
from rope_jax.data.storage import Corpus
from rope_jax.errors import UserError
from rope_jax.runs.files import write_text

# These say where things are kept, not what a run computes.
_PLACES = ("runs_dir", "data.cache_dir", "mesh.", "distributed")
# What a process leaves that is killed before it has written the config.
_BEFORE_CONFIG = {".lock", ".config.tmp.yaml", "config.yaml.tmp"}
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "datasets", "numpy", "scipy")


class RunDirectory:
    """runs/<name>/ and the paths in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.environment_file = path / "environment.json"
        self.metrics_file = path / "metrics.jsonl"
        self.throughput_file = path / "throughput.jsonl"
        self._lock = FileLock(path / ".lock", blocking=False)
        self.checkpoints = path / "checkpoints"
        self.evals = path / "evals"

    def refuse_another(self, config: Config) -> None:
        """UserError unless the folder is absent, empty, or holds this very config."""
        try:
            self._refuse_another(config)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror})") from None

    def _refuse_another(self, config: Config) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file; choose another name")
        if self.config_file.exists():
            different = _differences(config, self.load_config())
            if different:
                raise UserError(
                    f"{self.path}: holds a run with another {', '.join(different)}; "
                    "give this one another name, or delete that folder"
                )
        elif self.path.exists() and {entry.name for entry in self.path.iterdir()} - _BEFORE_CONFIG:
            raise UserError(f"{self.path}: is not empty and no run; choose another name")

    def prepare(self, config: Config) -> None:
        """Make the folder, with its config, and keep other processes out until `release`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self.refuse_another(config)  # another process may have made it in the meantime
            write_text(self.config_file, dump(config))
        except Timeout:
            raise UserError(
                f"{self.path}: another process is training in it; wait for it, or choose "
                "another name"
            ) from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from None

    def only_sweep(self, name: str) -> AbstractContextManager[object]:
        """Entered by one process at a time; UserError in another."""
        lock = FileLock(self.evals / f".{name}.lock", blocking=False)
        try:
            self.evals.mkdir(exist_ok=True)
            return lock.acquire()
        except Timeout:
            raise UserError(
                f"{self.evals / name}: another process is sweeping under this name; wait for it, "
                "or give name=another"
            ) from None
        except OSError as error:
            raise UserError(f"{self.evals}: cannot be written ({error.strerror})") from None

    def sweep_journal(self, name: str, step: int) -> Path:
        """What a sweep of this name that is not at its end has measured of a checkpoint."""
        return self.evals / f".{name}.{step}.journal"

    def remove_sweep_journals(self, name: str) -> None:
        """Those of all checkpoints: the sweep is at its end."""
        prefix = f".{name}."
        for path in self.evals.glob(".*.journal"):
            if path.name.removeprefix(prefix).removesuffix(".journal").isdigit():
                path.unlink(missing_ok=True)

    def release(self) -> None:
        """Let other processes in; the end of this one does the same."""
        self._lock.release()

    def load_config(self) -> Config:
        """The config that the run was made with."""
        try:
            there = self.config_file.is_file()
        except OSError as error:  # a name that is too long
            raise UserError(f"{self.path}: cannot be read ({error.strerror})") from None
        if not there:
            raise UserError(f"{self.path}: not a run directory (it has no config.yaml)")
        return load(Config, self.config_file)

    def check_corpus(self, corpus: Corpus) -> None:
        """UserError if the texts are not those the run began with.

        A test split is one only of the corpus that the run was trained on.
        """
        try:
            content = json.loads(self.environment_file.read_text(encoding="utf-8"))
            fingerprint = content["corpus"]["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(
                f"{self.environment_file}: missing or damaged; train the run again"
            ) from None
        if fingerprint != corpus.fingerprint:
            raise UserError(
                f"{self.path}: the corpus has changed since the run began (other files, or "
                "another Python): its test split may hold what the model was trained on"
            )

    def write_environment(self, corpus: Corpus) -> None:
        """What a figure's reader needs to make the run again."""
        import jax

        devices = jax.devices()
        content = {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
            "commit": _commit(),
            "devices": [f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"],
            "corpus": {"fingerprint": corpus.fingerprint, "report": list(corpus.report)},
        }
        write_text(self.environment_file, json.dumps(content, indent=2) + "\n")


def _differences(new: Config, old: Config) -> list[str]:
    flat_new, flat_old = _flat(new.model_dump(mode="json")), _flat(old.model_dump(mode="json"))
    keys = [*flat_new, *(key for key in flat_old if key not in flat_new)]
    return [k for k in keys if flat_new.get(k) != flat_old.get(k) and not k.startswith(_PLACES)]


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return {prefix.rstrip("."): node}
    return {k: v for key, inner in node.items() for k, v in _flat(inner, f"{prefix}{key}.").items()}


def _commit() -> str | None:
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
