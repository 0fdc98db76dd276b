"""A run that is opened: what training, sweeps, fits and key tokens share around their work."""

import contextlib
import functools
from collections.abc import Iterator

from rich.console import Console

from rope_jax.attention.backends import AttentionName
from rope_jax.config.data import DataConfig
from rope_jax.config.devices import DistributedConfig
from rope_jax.config.resolve import check_backend, describe_precision, resolve_model, resolve_run
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console, print_warning
from rope_jax.data.storage import Corpus, open_corpus
from rope_jax.data.tokenizers import Tokenizer, describe_tokenizer
from rope_jax.devices import processes
from rope_jax.devices.hardware import device_line
from rope_jax.errors import GO_ON, file_errors, shortage_as
from rope_jax.kernels.loading import load_kernels
from rope_jax.runs.directory import RunDirectory

_TEXTS_TOO_LARGE = "data: there is not enough memory to read it; split large files"


@contextlib.contextmanager
def open_run(
    run: RunDirectory,
    config: TrainingConfig,
    console: Console,
    *,
    attention: AttentionName | None = None,
    distributed: DistributedConfig | None = None,
    out_of_memory: str,
) -> Iterator["Session"]:
    """Open a run for work on it, in all processes together; only the first one prints.

    Errors of files become one line, and a lack of memory the line `out_of_memory`.
    """
    with (
        processes.initialize(distributed),
        shortage_as(out_of_memory),
        file_errors(run.path, *GO_ON),
    ):
        shown = console if processes.is_first() else plain_console(quiet=True)
        yield Session(run, config, shown, attention)


class Session:
    """A run with its config resolved for this machine, its tokenizer and its texts.

    recorded: the run's config as its folder keeps it.
    config: the same as it is computed here, in all processes alike; attention: with this backend.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: TrainingConfig,
        console: Console,
        attention: AttentionName | None = None,
    ) -> None:
        processes.check_same("config", config.model_dump_json(exclude={"distributed"}))
        self.run, self.console = run, console
        self.recorded = config
        if config.model.product_dtype == "auto":
            decided = processes.broadcast_from_host0(self._decide_products) or None
            model = config.model.model_copy(update={"product_dtype": decided})
            self.recorded = config.model_copy(update={"model": model})
        self.config = resolve_run(self.recorded, attention=attention)
        check_backend(self.config.model)
        processes.check_same("the kernels for CPUs", str(load_kernels() is None))

    def _decide_products(self) -> str:
        """Return what `product_dtype: auto` became when the run began, or becomes now."""
        begun = self.run.config_file.exists()
        model = (self.run.load_config() if begun else self.recorded).model
        return "bfloat16" if resolve_model(model).product_dtype == "bfloat16" else ""

    def warn(self, message: str) -> None:
        print_warning(self.console, message)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer; bpe is trained the first time."""
        with self.console.status("opening the tokenizer"), shortage_as(_TEXTS_TOO_LARGE):
            return self.run.open_tokenizer(self.config)

    def open_corpus(self, data: DataConfig | None = None, only: str | None = None) -> Corpus:
        """Open the texts of the run, or of `data`; all three splits, or `only` one."""
        with self.console.status("opening the corpus"), shortage_as(_TEXTS_TOO_LARGE):
            corpus = open_corpus(data or self.config.data, self.tokenizer, only)
        processes.check_same("data", corpus.fingerprint)
        return corpus

    def describe_devices(self) -> str:
        return device_line(describe_precision(self.config.model))

    def describe_tokenizer(self) -> str:
        return describe_tokenizer(self.config.tokenizer, self.tokenizer)
