"""A run's model, corpus and checkpoints, and the plan of what a sweep measures of each."""

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jaxtyping import Array
from numpy.typing import NDArray

from rope_jax.config.data import DataConfig
from rope_jax.config.devices import MeshConfig
from rope_jax.config.model import ModelConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.data.mix import words_of
from rope_jax.data.storage import Corpus, TokenSplit
from rope_jax.devices import processes
from rope_jax.devices.hardware import nominal_flops
from rope_jax.devices.memory import device_bytes
from rope_jax.devices.mesh import Placement
from rope_jax.errors import UserError
from rope_jax.evaluation import SweepResult
from rope_jax.evaluation.decoder import DecoderNLL, nll_of_last, scores_of_last
from rope_jax.evaluation.measure import measure
from rope_jax.evaluation.plan import EvalBatch, SweepPlan, readable, sweep_lengths
from rope_jax.model.cost import window_flops
from rope_jax.model.decoder import LanguageModel, Params, language_model
from rope_jax.model.memory import MemoryPlan
from rope_jax.model.resolve import ResolvedRun
from rope_jax.results.rows import Origin
from rope_jax.rope import Rotary
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import Session
from rope_jax.sweeps.compatibility import ResolvedSweep, resolve_sweep
from rope_jax.training.checkpoints import DamagedCheckpoint, newest_params, params_at, saved_steps
from rope_jax.training.provenance import check_provenance

LONGEST_DEFAULT = 3600.0
"""Seconds that the default lengths, documents and blocks may take at the nominal speed."""
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
    memory: MemoryPlan
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
        config: ResolvedSweep,
        texts: Sequence[NDArray[Any]],
        step: int,
        token_bytes: NDArray[Any] | None = None,
    ) -> SweepPlan:
        """Return the plan of a sweep of one checkpoint. UserError: it does not fit the texts."""
        return SweepPlan(
            layers=self.training.rotary_layers,
            trained=self.training.trained_at(step),
            documents=texts,
            bos_ids=self.corpus.tokenizer.bos_ids,
            config=config,
            longest=self.training.encoding.longest,
            words=words_of(self.corpus.tokenizer),
            token_bytes=token_bytes,
        )

    def measure(self, plan: SweepPlan, params: Params, **how: Any) -> SweepResult:
        """Measure what a plan says. how: see `evaluation.sweep`."""
        # only tasks need each target's first choice, which takes time
        of_last = self._where_it_fits(scores_of_last if plan.config.tasks else nll_of_last)
        return measure(
            plan,
            of_last,
            params,
            row_bytes=lambda n: float(self.memory.sharing(n).window(n)),
            row_multiple=lambda n: self.placement_at(n).row_shards,
            cost=lambda n: window_flops(self.model.config, self.model.vocab_size, n, 0),
            **how,
        )

    def one_checkpoint(self, step: int | None) -> Checkpoint:
        """Read the checkpoint of a step; None: the newest undamaged one."""
        steps = None if step is None else (step,)
        run, warn = self.session.run, self.session.warn
        _, checkpoints = chosen_checkpoints(run, steps, self.memory.like, warn)
        return next(checkpoints)

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
) -> EvalModel:
    """Return a run's model and corpus. UserError if the corpus is not the one it began with.

    data: texts to read instead, of which only `split` is opened, or all three if that is None.
    whole_heads: see `mesh_for`.
    """
    training = session.config
    corpus = session.open_corpus(data, None if data is None else split)
    own = corpus if data is None else None
    processes.on_first(lambda: check_provenance(session.run, session.recorded, own, session.warn))
    placement = Placement(mesh_for(training, whole_heads=whole_heads))
    model = language_model(training, session.tokenizer.vocab_size)
    like = placement.shard_state(jax.eval_shape(lambda: model.init(0)))
    memory = MemoryPlan(
        model.config,
        model.vocab_size,
        like,
        placement,
        available=processes.smallest(device_bytes()),
        memory_gib=memory_gib,
    )
    return EvalModel(session, training, corpus, model, memory)


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
    saved = [int(step) for step in processes.from_first(lambda: here).split()]
    if not saved:
        raise UserError(f"{run.checkpoints}: holds no checkpoint; train the run further first")
    if chosen is None:
        return saved[-1:]
    if chosen == "all":
        return saved
    for step in chosen:
        if step not in saved:
            there = ", ".join(map(str, saved))
            raise UserError(f"steps: {run.checkpoints} has no step {step}; it has {there}")
    return list(chosen)


class SweepPlans:
    """The plan of every checkpoint's sweep: the same lengths and texts, each with its own window.

    config: with what was chosen for defaults that would take too long.
    chosen: the keys for which that was done, and their values.
    lengths: of all checkpoints, with the window of each that lies between the others.
    readable: the lengths that the model can read.
    """

    def __init__(self, loaded: EvalModel, config: ResolvedSweep, steps: Sequence[int]) -> None:
        """UserError: a window of the longest length does not fit into memory, or the texts."""
        self.steps, self._loaded, self.config = steps, loaded, config
        self.split: TokenSplit = getattr(loaded.corpus, config.split)
        self._texts: Sequence[NDArray[Any]] = self.split.texts()
        self._token_bytes = _token_bytes(loaded.corpus, self.split, self._texts)
        training, newest = loaded.training, steps[-1]
        if config.lengths is not None:  # before arrays of these lengths are made
            self.check_memory(readable(self._lengths_of({}), training.encoding.longest))
        self.chosen, plan, self.flops_of_defaults = shrink_defaults(
            config,
            training.trained_at(newest).window,
            lambda chosen: self._plan(chosen, newest),
            lambda plan: self._flops(plan) * len(steps),
        )
        self.lengths = self._lengths_of(self.chosen)
        self.readable = readable(self.lengths, training.encoding.longest)
        self.config = resolve_sweep(config, training, **self.chosen)
        # those of a stage's checkpoints are equal
        self._plans = {training.stage_at(newest): plan}

    def of(self, step: int) -> SweepPlan:
        """Return the plan of one checkpoint's sweep."""
        stage = self._loaded.training.stage_at(step)
        if stage not in self._plans:
            self._plans[stage] = self._plan(self.chosen, step)
        return self._plans[stage]

    def flops(self, done: Callable[[int], Container[str]]) -> float:
        """Return the FLOPs of what is left to measure. done: by step, keys of what is measured."""
        return sum(self._flops(self.of(step), done(step)) for step in self.steps)

    def check_memory(self, read: Sequence[int]) -> None:
        """UserError if a window of the longest of these lengths does not fit into memory."""
        # texts that are too short for the longest length are refused when it is planned
        is_long_enough = read and any(len(text) >= read[-1] for text in self._texts)
        self._loaded.memory.check(read if is_long_enough else ())

    def _flops(self, plan: SweepPlan, done: Container[str] = ()) -> float:
        model = self._loaded.model
        return sweep_flops(plan, model.config, model.vocab_size, done)

    def _plan(self, chosen: dict[str, Any], step: int) -> SweepPlan:
        chosen = chosen | {"lengths": self._lengths_of(chosen)}
        config = resolve_sweep(self.config, self._loaded.training, **chosen)
        return self._loaded.plan(config, self._texts, step, self._token_bytes)

    def _lengths_of(self, chosen: dict[str, Any]) -> tuple[int, ...]:
        windows = [self._loaded.training.trained_at(step).window for step in self.steps]
        lengths = chosen.get("lengths") or sweep_lengths(self.config, windows[-1])
        return tuple(sorted({*lengths, *(n for n in windows if lengths[0] < n < lengths[-1])}))


def _token_bytes(corpus: Corpus, split: TokenSplit, texts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the bytes of text of each token [V], for a split whose tokens are `texts`.

    All tokens of the split add up to the bytes of its texts: where the tokenizer changed these,
    the difference is spread over all tokens.
    """
    by_token = corpus.tokenizer.token_bytes
    tokens = sum(map(len, texts))
    counted = sum(int(by_token[text].sum()) for text in texts)
    return by_token * (round((split.bytes_per_token or 0) * tokens) / max(counted, 1))


def sweep_flops(
    plan: SweepPlan, model: ModelConfig, vocab_size: int, done: Container[str] = ()
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


def shrink_defaults(
    config: SweepConfig,
    window: int,
    plan_of: Callable[[dict[str, Any]], SweepPlan],
    flops_of: Callable[[SweepPlan], float],
) -> tuple[dict[str, Any], SweepPlan, float]:
    """Choose shorter lengths, one block per document and fewer documents if an hour is too short.

    Return the values chosen in place of the config's defaults, the plan with them, and the FLOPs of
    all defaults. Without a choice that takes an hour at most, the cheapest one is returned. Lengths
    for which the texts are too short are not among the choices. The speed is a nominal one, so that
    the same command always chooses alike; how long it takes is another question.

    UserError: the texts are too short for every choice.
    """
    choice: tuple[dict[str, Any], SweepPlan, float] | None = None
    errors: list[UserError] = []
    for candidate in _candidates(config, window):
        try:
            plan = plan_of(candidate)
        except UserError as error:
            errors.append(error)
            continue
        chosen = {key: x for key, x in candidate.items() if x != getattr(config, key)}
        flops = flops_of(plan)
        choice = chosen, plan, choice[2] if choice else flops
        if flops <= LONGEST_DEFAULT * nominal_flops():
            break
    if choice is None:
        raise errors[0]
    return choice


def _candidates(config: SweepConfig, window: int) -> Iterator[dict[str, Any]]:
    """Yield no values in place of the defaults, and then ever cheaper ones."""
    lengths = sweep_lengths(config, window)
    may_end_sooner = config.lengths is None and len(lengths) > 3
    documents = [config.max_documents]
    if "max_documents" not in config.model_fields_set:
        documents += [20, 10, 5]
    blocks = 1 if config.max_blocks == "auto" else config.max_blocks
    for end in range(len(lengths), 2, -1) if may_end_sooner else [len(lengths)]:
        kept = {"lengths": tuple(lengths[:end])} if end < len(lengths) else {}
        yield kept
        # fewer than 20 documents only where the lengths cannot be shorter
        for count in documents if end == 3 or not may_end_sooner else documents[:2]:
            yield kept | {"max_documents": count, "max_blocks": blocks}
