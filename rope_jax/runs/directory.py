"""A run's folder: the paths in it, its lock, and whether a run may use it."""

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import jax

from rope_jax.config.load import dump, load
from rope_jax.config.schema import different_keys
from rope_jax.config.training import TrainingConfig
from rope_jax.data import chat
from rope_jax.data.storage import Corpus
from rope_jax.data.tokenizers import Tokenizer, open_tokenizer
from rope_jax.errors import UserError, file_errors
from rope_jax.sealed import locked, write_text

RUN_CONFIG = "run.yaml"
"""In a sweep's folder: the config of the run that was swept."""
# Left by a process killed before it had written the config.
_BEFORE_CONFIG = {".lock", ".config.tmp.yaml"}
_PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint"),
    *("datasets", "tokenizers", "numpy", "scipy"),
)


class RunDirectory:
    """The folder runs/<name>/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.environment_file = path / "environment.json"
        self.tokenizer_file = path / "tokenizer.json"
        self.metrics_file = path / "metrics.jsonl"
        self.throughput_file = path / "throughput.jsonl"
        self.checkpoints = path / "checkpoints"
        self.evals = path / "evals"
        self.fits = path / "fits"
        self.huggingface = path / "huggingface"

    def check_available(
        self,
        config: TrainingConfig,
        explain_other: Callable[[TrainingConfig], str | None] | None = None,
    ) -> None:
        """UserError unless the folder is absent, is empty, or holds a run with this config.

        explain_other: returns what is wrong with going on from another config; None: nothing is.
        """
        explain = explain_other or (lambda _: "give this one another name, or delete that folder")
        with file_errors(self.path):
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"{self.path}: is a file; choose another name")
            if self.config_file.exists():
                old = self.load_config()
                different = ", ".join(different_keys(config, old))
                if different and (reason := explain(old)):
                    raise UserError(f"{self.path}: holds a run with another {different}; {reason}")
            elif self.path.exists() and {f.name for f in self.path.iterdir()} - _BEFORE_CONFIG:
                raise UserError(f"{self.path}: is neither empty nor a run; choose another name")

    @contextlib.contextmanager
    def prepared(
        self,
        config: TrainingConfig,
        tokenizer: Tokenizer,
        explain_other: Callable[[TrainingConfig], str | None] | None = None,
    ) -> Iterator[None]:
        """Create the folder with its config and tokenizer; keep others out in this context."""
        busy = f"{self.path}: another process is training in it; wait for it, or choose another "
        with locked(self.path / ".lock", f"{busy}name"):
            # another process may have created it meanwhile
            self.check_available(config, explain_other)
            write_text(self.config_file, dump(config))
            if config.tokenizer.type != "bytes":
                write_text(self.tokenizer_file, tokenizer.json())
            if tokenizer.chat is not None:
                write_text(self.path / chat.SETTINGS, tokenizer.chat.settings())
            yield

    @contextlib.contextmanager
    def lock_sweep(self, name: str) -> Iterator[None]:
        """Lock a sweep until the context exits, which leaves nothing if nothing was written."""
        folder, advice = self.evals / name, "choose another name with name="
        busy = f"{folder}: another process is sweeping under this name; wait for it, or {advice}"
        try:
            with locked(self.evals / f".{name}.lock", busy):
                if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK)):
                    raise UserError(f"{folder}: cannot be written; {advice}")
                yield
        finally:
            with contextlib.suppress(OSError):  # it is not empty
                self.evals.rmdir()

    def sweep_journal(self, name: str, step: int) -> Path:
        """Path of what sweeps of this name have measured of one checkpoint."""
        return self.evals / f".{name}.{step}.journal"

    def remove_sweep_journals(self, name: str, keep: Collection[int] = ()) -> None:
        """Delete the journals of a sweep, except for checkpoints to keep."""
        for path in self.evals.glob(".*.journal"):
            step = path.name.removeprefix(f".{name}.").removesuffix(".journal")
            if step.isdigit() and int(step) not in keep:
                path.unlink(missing_ok=True)

    def load_config(self) -> TrainingConfig:
        """Return the run's config. UserError if this is not a run directory."""
        with file_errors(self.path):  # such as a name that is too long
            if not self.config_file.is_file():
                raise UserError(f"{self.path}: not a run directory (it has no config.yaml)")
        return load(TrainingConfig, self.config_file)

    def open_tokenizer(self, config: TrainingConfig) -> Tokenizer:
        """Return the run's tokenizer, from its copy if there is one. UserError: it is another."""
        tokenizer = open_tokenizer(
            config.tokenizer, config.data, self.tokenizer_file, config.model.vocab_size
        )
        if self._recorded("tokenizer") not in (None, tokenizer.name):
            raise UserError(
                f"{self.tokenizer_file}: is not the tokenizer that the run began with; restore it "
                "from a copy"
            )
        return tokenizer

    def recorded_corpus(self) -> str | None:
        """Return the fingerprint of the corpus that the run began with; None if it is unknown."""
        return self._recorded("corpus", "fingerprint")

    def _recorded(self, *keys: str) -> str | None:
        """Return a text in environment.json; None if it is not there or the file is damaged."""
        try:
            content = json.loads(self.environment_file.read_bytes())
            for key in keys:
                content = content[key]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None
        return content if isinstance(content, str) else None

    def write_environment(
        self, tokenizer: str, corpus: Corpus | None, init_from: Mapping[str, object] | None = None
    ) -> None:
        """Record what is needed to reproduce the run: versions, devices, commit, texts, tokenizer.

        corpus: None for an imported checkpoint, whose texts are unknown.
        init_from: the checkpoint that its first weights come from.
        """
        devices = jax.devices()
        content: dict[str, object] = {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
            "commit": _commit(),
            "devices": [f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"],
            "tokenizer": tokenizer,
        }
        if corpus is not None:
            content["corpus"] = {"fingerprint": corpus.fingerprint, "report": list(corpus.report)}
        if init_from is not None:
            content["init_from"] = dict(init_from)
        write_text(self.environment_file, json.dumps(content, indent=2) + "\n")


def _commit() -> str | None:
    """Return the commit of this package's repository; None outside one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    folder = Path(__file__).parent
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10)
        return done.stdout.strip() or None
    return None
