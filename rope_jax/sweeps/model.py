"""A run's model and corpus, ready to be measured."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from numpy.typing import NDArray
from rich.console import Console

from rope_jax.config.data import DataConfig
from rope_jax.config.devices import MeshConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.console import print_warning
from rope_jax.data.storage import Corpus, open_corpus
from rope_jax.data.tokens import TokenSplit
from rope_jax.devices import processes
from rope_jax.devices.mesh import Placement
from rope_jax.evaluation import SweepResult, sweep
from rope_jax.evaluation.decoder import nll_of_all, nll_of_last
from rope_jax.evaluation.reader import LastNLLFunction, NLLFunction
from rope_jax.evaluation.results import Origin
from rope_jax.model.decoder import LanguageModel, Params, language_model
from rope_jax.runs.directory import RunDirectory
from rope_jax.sweeps.fit import for_tokenizer
from rope_jax.sweeps.memory import MemoryPlan
from rope_jax.training.provenance import check_provenance


@dataclass(frozen=True)
class LoadedModel:
    """The model of a run, without parameters, and the texts to measure it on."""

    training: Config
    corpus: Corpus
    """The one that it was trained on, or the sweep's own texts."""
    placement: Placement
    model: LanguageModel
    like: Params
    """Shapes, dtypes and shardings of the parameters."""
    nll_of_last: LastNLLFunction

    @property
    def memory(self) -> MemoryPlan:
        """What reading a window takes on each device, weights included."""
        return MemoryPlan(self.training.model, self.model.vocab_size, self.like)

    def row_bytes(self, length: int) -> float:
        """Return the bytes that a window of n tokens takes, beside the weights."""
        return float(self.memory.at(length).window)

    @property
    def nll(self) -> NLLFunction:
        """The NLL of all targets, see `evaluation.sweep`."""
        return nll_of_all(self.nll_of_last)

    def sweep(
        self,
        config: SweepConfig,
        texts: Sequence[NDArray[Any]],
        params: Params,
        step: int,
        lengths: Sequence[int] | None,
        **how: Any,
    ) -> SweepResult:
        """Sweep the checkpoint of a training step. how: see `evaluation.sweep`."""
        config = for_tokenizer(self.corpus.tokenizer, config)
        training, stage = self.training, self.training.stage_at(step)
        return sweep(
            self.nll,
            config.scalings,
            lengths,
            texts,
            params=params,
            geometry=training.rotary_layers,
            trained=training.stage_scaling(stage),
            window=training.stages[stage].seq_len,
            trained_map=training.stage_map(stage),
            takes_maps=True,
            longest=training.encoding.longest,
            bos_id=self.corpus.tokenizer.bos_id,
            nll_of_last=self.nll_of_last,
            row_bytes=self.row_bytes,
            row_multiple=self.placement.mesh.size,
            **how,
            **config.model_dump(exclude={"steps", "scalings", "lengths", "data"}),
        )

    def origin(self, step: int, split: TokenSplit) -> Origin:
        """Return where the results of a checkpoint come from. split: the texts that were read."""
        return Origin(
            run=self.training.name,
            step=step,
            seed=self.training.seed,
            bytes_per_token=split.bytes_per_token,
            corpus=self.corpus.fingerprint[:16],
        )


def load_model(
    run: RunDirectory,
    training: Config,
    console: Console,
    data: DataConfig | None = None,
    split: str = "test",
) -> LoadedModel:
    """Return a run's model and corpus. UserError if the corpus is not the one it began with.

    data: texts to read instead, of which only `split` is opened. Then the run's own corpus is not
    read, and nobody can check whether the texts are among those that it was trained on.
    """
    warn = functools.partial(print_warning, console)
    tokenizer = run.open_tokenizer(training, warn)
    if data is None:
        own = corpus = open_corpus(training.data, tokenizer, warn)
    else:
        own, corpus = None, open_corpus(data, tokenizer, warn, only=split)
    processes.on_first(lambda: check_provenance(run, training, own, warn))
    placement = Placement(mesh_for(training))
    model = language_model(training, tokenizer.vocab_size)
    like = placement.shard_state(jax.eval_shape(lambda: model.init(0)))
    return LoadedModel(training, corpus, placement, model, like, nll_of_last(model, placement))


def mesh_for(training: Config) -> MeshConfig:
    """Return a mesh of all devices that splits parameters as in training as far as possible."""
    return MeshConfig(fsdp=math.gcd(training.mesh.fsdp, jax.device_count()))
