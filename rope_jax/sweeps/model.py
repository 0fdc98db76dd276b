"""A run's model, corpus and checkpoints, as a sweep reads them."""

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jaxtyping import Array
from numpy.typing import NDArray

from rope_jax.config.data import DataConfig
from rope_jax.config.devices import MeshConfig
from rope_jax.config.inherit import saved_steps
from rope_jax.config.resolve import ResolvedRun, language_model
from rope_jax.config.training import TrainingConfig
from rope_jax.data.mix import words_of
from rope_jax.data.storage import Corpus
from rope_jax.devices import processes
from rope_jax.devices.memory import device_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.devices.window_memory import MemoryEstimate
from rope_jax.errors import UserError
from rope_jax.evaluation.decoder import DecoderNLL, nll_of_last, scores_of_last
from rope_jax.evaluation.measure import measure
from rope_jax.evaluation.plan import EvalBatch, ResolvedSweep, SweepPlan
from rope_jax.evaluation.results import SweepResult
from rope_jax.model.cost import window_flops
from rope_jax.model.decoder import LanguageModel, Params
from rope_jax.model.spec import ModelSpec
from rope_jax.results.rows import Origin
from rope_jax.rope import Rotary
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import Session
from rope_jax.training.checkpoints import DamagedCheckpoint, newest_params, params_at
from rope_jax.training.provenance import check_provenance

Checkpoint = tuple[int, Params]
"""A training step, and the parameters after it."""
Steps = Sequence[int] | Literal["all"] | None
"""As in a sweep's config; None: the newest."""


@dataclass(frozen=True)
class EvalModel:
    """The model of a run, without parameters, and the texts to measure it on."""

    session: Session
    training: ResolvedRun
    corpus: Corpus
    """The one that it was trained on, or the sweep's own texts."""
    model: LanguageModel
    memory: MemoryEstimate
    """Memory on each device for reading a window; also where and how the parameters lie."""

    def placement_at(self, length: int) -> Placement:
        """Return where windows of n tokens are read.

        The devices read different windows, unless one does not fit on a device: then they share it.
        """
        return self.memory.sharing(length).placement

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
        sweep: ResolvedSweep,
        texts: Sequence[NDArray[Any]],
        step: int,
        token_bytes: NDArray[Any] | None = None,
    ) -> SweepPlan:
        """Return the plan of a sweep of one checkpoint. UserError: it does not fit the texts."""
        return SweepPlan(
            sweep,
            self.training.rotary_layers,
            self.training.trained_at(step),
            texts,
            self.corpus.tokenizer.bos_ids,
            words=words_of(self.corpus.tokenizer),
            token_bytes=token_bytes,
        )

    def flops(self, plan: SweepPlan, done: Container[str] = ()) -> float:
        """Return the FLOPs of a plan; done: keys of what need not be measured again."""
        return sweep_flops(plan, self.model.spec, self.model.vocab_size, done)

    def measure(self, plan: SweepPlan, params: Params, **how: Any) -> SweepResult:
        """Measure what a plan says. how: see `evaluation.sweep`."""
        # only tasks need each target's first choice, which takes time
        of_last = self._where_it_fits(scores_of_last if plan.sweep.config.tasks else nll_of_last)
        return measure(
            plan,
            of_last,
            params,
            row_bytes=lambda n: float(self.memory.sharing(n).window(n)),
            row_multiple=lambda n: self.placement_at(n).row_shards,
            cost=lambda n: window_flops(self.model.spec, self.model.vocab_size, n, 0),
            **how,
        )

    def one_checkpoint(self, step: int | None) -> Checkpoint:
        """Read the checkpoint of a step; None: the newest undamaged one."""
        steps, run, warn = None if step is None else (step,), self.session.run, self.session.warn
        return next(chosen_checkpoints(run, steps, self.memory.abstract_params, warn)[1])

    def origin(self, step: int) -> Origin:
        """Return where the results of a checkpoint come from."""
        name, seed = self.training.name, self.training.seed
        return Origin(name, step, seed, self.corpus.fingerprint[:16])


def load_model(
    session: Session,
    data: DataConfig | None = None,
    split: str | None = "test",
    memory_gib: float | int | None = None,
    *,
    whole_heads: bool = False,
) -> EvalModel:
    """Return a run's model and corpus. UserError if the corpus is not the one it began with.

    data: texts to read instead, of which only `split` is opened, or all three if that is None.
    whole_heads: see `mesh_for`.
    """
    training = session.config
    corpus = session.open_corpus(data, None if data is None else split)
    trained_on = corpus if data is None else None
    processes.on_first(lambda: check_provenance(session.run, session.recorded, trained_on))
    model, memory = place_here(session, memory_gib, whole_heads=whole_heads)
    return EvalModel(session, training, corpus, model, memory)


def place_here(
    session: Session, memory_gib: float | int | None = None, *, whole_heads: bool = False
) -> tuple[LanguageModel, MemoryEstimate]:
    """Return `place_model` on this machine's devices. whole_heads: see `mesh_for`."""
    placement = Placement(mesh_for(session.config, whole_heads=whole_heads))
    available = processes.min_over_hosts(device_bytes())
    vocab_size = session.tokenizer.vocab_size
    return place_model(session.config, vocab_size, placement, available, memory_gib)


def place_model(
    training: ResolvedRun,
    vocab_size: int,
    placement: Placement,
    available: float | int,
    memory_gib: float | int | None = None,
) -> tuple[LanguageModel, MemoryEstimate]:
    """Return a run's model, and its memory where a placement splits it; available: bytes."""
    model = language_model(training, vocab_size)
    placement.check_vocabulary(model.vocab_size)
    placement = placement.splitting(model.shardings)
    like = placement.shard_state(model.abstract_params())
    memory = MemoryEstimate(model.spec, model.vocab_size, like, placement, available, memory_gib)
    return model, memory


def mesh_for(
    training: TrainingConfig, devices: int | None = None, *, whole_heads: bool = False
) -> MeshConfig:
    """Return a mesh that splits parameters as in training as far as possible.

    devices: how many (default: all). whole_heads: each device must compute all heads, because
    strategies differ by head.
    """
    devices = devices or jax.device_count()
    trained = training.mesh
    if whole_heads:
        shards = math.gcd(trained.fsdp * trained.tensor, training.model.hidden_size)
        return MeshConfig(fsdp=math.gcd(shards, devices))
    tensor = math.gcd(trained.tensor, devices)
    return MeshConfig(fsdp=math.gcd(trained.fsdp, devices // tensor), tensor=tensor)


def chosen_checkpoints(
    run: RunDirectory, chosen: Steps, like: Any, warn: Callable[[str], None]
) -> tuple[list[int], Iterator[Checkpoint]]:
    """Return the steps to sweep, ascending, and an iterator that reads their checkpoints in turn.

    UserError: a chosen step was not saved. The iterator raises UserError for a damaged checkpoint;
    with "all" it skips those with a warning, unless all are damaged.
    """
    if chosen is None:
        newest = newest_params(run.checkpoints, like, warn)
        return [newest[0]], iter([newest])
    steps = expected_steps(run, chosen)

    def read() -> Iterator[Checkpoint]:
        some_are_read = False
        for step in steps:
            try:
                params = params_at(run.checkpoints, step, like)
            except DamagedCheckpoint as error:  # a run in progress may have deleted it meanwhile
                if chosen != "all" or (step == steps[-1] and not some_are_read):
                    raise
                warn(f"{error}; skipped")
                continue
            some_are_read = True
            yield step, params

    return steps, read()


def expected_steps(run: RunDirectory, chosen: Steps) -> list[int]:
    """Return the steps that `chosen_checkpoints` will return, unless the newest is damaged."""
    here = " ".join(map(str, saved_steps(run.checkpoints)))
    saved = [int(step) for step in processes.broadcast_from_host0(lambda: here).split()]
    if not saved:
        raise UserError(f"{run.checkpoints}: holds no checkpoint; train the run further first")
    if chosen is None:
        return saved[-1:]
    if chosen == "all":
        return saved
    for step in chosen:
        if step not in saved:
            there = ", ".join(map(str, saved))
            raise UserError(f"{run.checkpoints}: has no step {step}; it has {there}")
    return list(chosen)


def sweep_flops(
    plan: SweepPlan, model: ModelSpec, vocab_size: int, done: Container[str] = ()
) -> float:
    """Return the FLOPs of a sweep's batches. done: keys of what need not be measured again."""
    batches: dict[str, tuple[EvalBatch, int]] = {}
    for job in plan.jobs():
        if job.key not in done:
            _, last = batches.get(job.batch.key, (job.batch, 0))
            batches[job.batch.key] = job.batch, max(last, job.last)
    flops = (
        batch.windows * window_flops(model, vocab_size, batch.length, last)
        for batch, last in batches.values()
    )
    return sum(flops, 0.0)
