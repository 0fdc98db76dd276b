"""A run's model, corpus and checkpoints, ready to be measured."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array
from numpy.typing import NDArray

from rope_jax.config.data import DataConfig
from rope_jax.config.devices import MeshConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.data.mix import words_of
from rope_jax.data.storage import Corpus, TokenSplit
from rope_jax.devices import processes
from rope_jax.devices.memory import device_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.evaluation import SweepResult
from rope_jax.evaluation.decoder import DecoderNLL, nll_of_last, of_all, scores_of_last
from rope_jax.evaluation.plan import Plan
from rope_jax.evaluation.sweep import measure
from rope_jax.model.decoder import LanguageModel, Params, language_model
from rope_jax.model.memory import MemoryPlan
from rope_jax.model.resolve import ResolvedRun
from rope_jax.results.rows import Origin
from rope_jax.rope import Rotary
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import Session
from rope_jax.sweeps.compatibility import ResolvedSweep
from rope_jax.training.checkpoints import DamagedCheckpoint, newest_params, params_at, saved_steps
from rope_jax.training.provenance import check_provenance

Checkpoint = tuple[int, Params]
"""A training step, and the parameters after it."""


@dataclass(frozen=True)
class LoadedModel:
    """The model of a run, without parameters, and the texts to measure it on."""

    session: Session
    corpus: Corpus
    """The one that it was trained on, or the sweep's own texts."""
    placement: Placement
    model: LanguageModel
    like: Params
    """Shapes, dtypes and shardings of the parameters."""
    memory: MemoryPlan
    """Memory on each device for reading a window, weights included."""

    @property
    def training(self) -> ResolvedRun:
        """The run's config."""
        return self.session.config

    def placement_at(self, length: int) -> Placement:
        """Return where windows of n tokens are read.

        The devices read different windows, unless one does not fit on a device: then they share it.
        """
        return self.placement.sharing_windows(self.memory.sharing(length).context)

    @property
    def nll_of_last(self) -> DecoderNLL:
        """The NLL of a window's last targets, see `evaluation.sweep`."""
        return self._where_it_fits(nll_of_last)

    def _where_it_fits(self, of_last: Callable[[LanguageModel, Placement], Any]) -> Any:
        """Return `of_last` with the placement that the length of the windows needs."""

        def placed(params: Params, tokens: Array, rotary: Rotary, last: int | None) -> Any:
            placement = self.placement_at(tokens.shape[1] - 1)
            return of_last(self.model, placement)(params, tokens, rotary, last)

        return placed

    def plan(
        self,
        config: ResolvedSweep,
        texts: Sequence[NDArray[Any]],
        step: int,
        token_bytes: NDArray[Any] | None = None,
    ) -> Plan:
        """Return the plan of a sweep of one checkpoint. UserError: it does not fit the texts."""
        training, trained = self.training, self.training.trained_at(step)
        return Plan(
            layers=training.rotary_layers,
            trained=trained.scaling,
            window=trained.window,
            documents=texts,
            bos_id=self.corpus.tokenizer.bos_id,
            config=config,
            trained_map=trained.map,
            takes_maps=True,
            longest=training.encoding.longest,
            words=words_of(self.corpus.tokenizer),
            token_bytes=token_bytes,
        )

    def measure(self, plan: Plan, params: Params, **how: Any) -> SweepResult:
        """Measure what a plan says. how: see `evaluation.sweep`."""
        of_last: Any = self.nll_of_last
        if plan.config.tasks:  # only they need each target's first choice, which takes time
            of_last = self._where_it_fits(scores_of_last)
        return measure(
            plan,
            of_all(of_last),
            params,
            nll_of_last=of_last,
            row_bytes=lambda n: float(self.memory.sharing(n).window(n).total),
            row_multiple=lambda n: self.placement_at(n).row_shards,
            **how,
        )

    def one_checkpoint(self, step: int | None) -> Checkpoint:
        """Read the checkpoint of a step; None: the newest undamaged one."""
        chosen = SweepConfig(steps=None if step is None else (step,))
        run, warn = self.session.run, self.session.warn
        _, checkpoints = chosen_checkpoints(run, chosen, self.like, warn)
        return next(checkpoints)

    def token_bytes(self, split: TokenSplit, texts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the bytes of text of each token [V], for a split whose tokens are `texts`.

        All tokens of the split add up to the bytes of its texts: where the tokenizer changed these,
        the difference is spread over all tokens.
        """
        by_token = self.corpus.tokenizer.token_bytes
        tokens = sum(map(len, texts))
        counted = sum(int(by_token[text].sum()) for text in texts)
        return by_token * (round((split.bytes_per_token or 0) * tokens) / max(counted, 1))

    def origin(self, step: int) -> Origin:
        """Return where the results of a checkpoint come from."""
        training = self.training
        return Origin(training.name, step, training.seed, self.corpus.fingerprint[:16])


def load_model(
    session: Session,
    data: DataConfig | None = None,
    split: str | None = "test",
    memory_gib: float | int | None = None,
    *,
    whole_heads: bool = False,
) -> LoadedModel:
    """Return a run's model and corpus. UserError if the corpus is not the one it began with.

    data: texts to read instead, of which only `split` is opened, or all three if that is None.
    whole_heads: see `mesh_for`.
    """
    training = session.config
    corpus = session.open_corpus(data, None if data is None else split)
    own = corpus if data is None else None
    processes.on_first(lambda: check_provenance(session.run, training, own, session.warn))
    placement = Placement(mesh_for(training, whole_heads=whole_heads))
    model = language_model(training, session.tokenizer.vocab_size)
    like = placement.shard_state(jax.eval_shape(lambda: model.init(0)))
    memory = memory_plan(
        *(model, placement, like),
        available=processes.smallest(device_bytes()),
        memory_gib=memory_gib,
        imported=training.imported is not None,
    )
    return LoadedModel(session, corpus, placement, model, like, memory)


def memory_plan(
    model: LanguageModel, placement: Placement, like: Params, **limits: Any
) -> MemoryPlan:
    """Return the memory for reading a window where `placement` puts the parameters.

    limits: `available`, `memory_gib` and `imported` of the plan.
    """
    return MemoryPlan(
        model.config,
        model.vocab_size,
        like,
        tensor=placement.config.tensor,
        copies=placement.config.data or 1,
        device=placement.device,
        **limits,
    )


def mesh_for(
    training: Config, devices: int | None = None, *, whole_heads: bool = False
) -> MeshConfig:
    """Return a mesh that splits parameters as in training as far as possible.

    devices: how many; all that JAX found by default.
    whole_heads: each device must compute all heads, because strategies differ by head.
    """
    devices = devices or jax.device_count()
    trained = training.mesh
    if whole_heads:
        shards = math.gcd(trained.fsdp * trained.tensor, training.model.hidden_size)
        return MeshConfig(fsdp=math.gcd(shards, devices))
    tensor = math.gcd(trained.tensor, devices)
    return MeshConfig(fsdp=math.gcd(trained.fsdp, devices // tensor), tensor=tensor)


def chosen_checkpoints(
    run: RunDirectory, config: SweepConfig, like: Any, warn: Callable[[str], None]
) -> tuple[list[int], Iterator[Checkpoint]]:
    """Return the steps to sweep, ascending, and an iterator that reads their checkpoints in turn.

    UserError: a step of `config.steps` was not saved. The iterator raises UserError for a damaged
    checkpoint; with `steps: all` it skips those with a warning, unless all are damaged.
    """
    if config.steps is None:
        newest = newest_params(run.checkpoints, like, warn)
        return [newest[0]], iter([newest])
    steps = expected_steps(run, config)

    def read() -> Iterator[Checkpoint]:
        found = 0
        for step in steps:
            try:
                params = params_at(run.checkpoints, step, like)
            except DamagedCheckpoint as error:  # a run in progress may have deleted it meanwhile
                if config.steps != "all" or (step == steps[-1] and not found):
                    raise
                warn(f"{error}; skipped")
                continue
            found += 1
            yield step, params

    return steps, read()


def expected_steps(run: RunDirectory, config: SweepConfig) -> list[int]:
    """Return the steps that `chosen_checkpoints` will return, unless the newest is damaged."""
    here = " ".join(map(str, saved_steps(run.checkpoints)))
    saved = [int(step) for step in processes.from_first(lambda: here).split()]
    if config.steps is None:
        return saved[-1:]
    if config.steps == "all":
        return saved
    for step in config.steps:
        if step not in saved:
            there = ", ".join(map(str, saved))
            raise UserError(f"steps: {run.checkpoints} has no step {step}; it has {there}")
    return list(config.steps)
