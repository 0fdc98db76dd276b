"""Decide what an extension measures: candidates, lengths, and as many texts as time allows."""

import itertools
import math
from collections.abc import Iterator

from rope_jax.config.data import StdlibData
from rope_jax.config.entries import SweepEntry, Trained, parse_entries
from rope_jax.config.extend import ExtendConfig, ExtendPlan
from rope_jax.config.fit import FitConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import describe_duration
from rope_jax.devices.hardware import peak_flops, reached_flops
from rope_jax.errors import UserError
from rope_jax.model.cost import flops_per_token, window_flops
from rope_jax.protocols.base import RELIABLE_UNITS
from rope_jax.results.files import SweepTables
from rope_jax.sweeps.model import EvalModel
from rope_jax.sweeps.resolve import resolve_run_sweep

FORMULAS = ("yarn", "ntk", "llama3", "pi")
"""Strategies with a fixed factor that transformers, vLLM or llama.cpp can read with."""
SCREENING = 4
"""Windows at the length alone, by which a screening chooses the candidate that is measured."""
_SIZES = ((64, 8, False), (32, 4, False), (RELIABLE_UNITS, 3, False), (RELIABLE_UNITS, 3, True),
          (10, 2, True))  # fmt: skip
"""Scored windows at each length, one per document if there are enough, passkeys per depth, and
whether a screening saves measuring all candidates like that. The best come first."""


def check_model(training: TrainingConfig, trained: Trained, length: int) -> None:
    """UserError unless a scaling can let the model read texts of a length."""
    position, layers = training.model.position, training.rotary_layers
    if position.type != "rope":
        raise UserError(f"MODEL: its position is {position.type}, and an extension is for rope")
    if all(layers.for_layer(i, trained.scaling)[1].type == "drope" for i in range(layers.count)):
        raise UserError("MODEL: none of its layers rotates, so there is nothing to scale")
    if length <= trained.window:
        raise UserError(
            f"LENGTH: {length:,} is within the window of {trained.window:,} tokens, which the "
            "model reads already; give more"
        )


def lengths_to(window: int, length: int) -> tuple[int, ...]:
    """Return the window, a length between where they are more than twice apart, and the length."""
    between = window * 2 ** round(math.log2(length / window) / 2)
    return tuple(sorted({window, between, length}))


def shortlist(
    asked: ExtendConfig, training: TrainingConfig, trained: Trained
) -> tuple[SweepEntry, ...]:
    """Return the candidates: the model as it is, its own scaling continued, and formulas.

    Factors are fixed, because a runtime does not know how long a text will become.
    """
    s, own = asked.length / trained.window, trained.scaling
    continued = s * (own.extension_factor or 1.0)
    if asked.scalings is not None:
        over_base = asked.length / trained.train_length
        return tuple(
            _with_factor(entry, continued if entry.type == "trained" else s, over_base)
            for entry in asked.scalings
        )
    continuing = [{"type": "trained", "factor": continued}]
    try:
        own.continued(continued)
    except ValueError:  # it has no factor, or no larger one
        continuing = []
    is_plain = own.type == "none" and training.geometry.train_length == trained.window
    over = {} if is_plain else {"over": "trained"}
    return parse_entries(
        "trained", *continuing, *({"type": name, "factor": s, **over} for name in FORMULAS)
    )


def _with_factor(entry: SweepEntry, factor: float, over_base: float) -> SweepEntry:
    """Return the entry with a number in place of an `auto` factor."""
    if not entry.factor_is_auto:
        return entry
    return entry.model_copy(update={"factor": over_base if entry.over == "base" else factor})


def lacks_for_fit(asked: ExtendConfig) -> str:
    """Return why the texts are not for a fit, "" if they are: it must not see what is measured."""
    files = getattr(asked.data, "files", None)
    if asked.data is None or isinstance(asked.data, StdlibData):
        return ""
    if isinstance(files, dict) and files.keys() >= {"train", "validation", "test"}:
        return ""
    return "the texts have no splits; name data.files.train, data.files.validation and .test"


def best_candidate(config: SweepConfig, tables: SweepTables, length: int) -> SweepEntry:
    """Return the entry with the lowest loss at a length, but for the model as it is."""
    losses = {row.name: row.nll for row in tables.rows if row.length == length}
    candidates = (entry for entry in config.scalings if not entry.is_baseline)
    return min(candidates, key=lambda entry: losses[entry.label])


def make_plan(asked: ExtendConfig, loaded: EvalModel, step: int) -> tuple[ExtendPlan, float]:
    """Return the plan with as many texts as `minutes` allow, and the seconds that it takes here.

    UserError: not even the fewest texts can be read in that time, or none is long enough.
    """
    plan, seconds = None, math.inf
    for plan in _plans(asked, loaded, step):
        seconds = _seconds(plan, loaded, step)
        if seconds <= 60 * asked.minutes:
            return plan, seconds
    assert plan is not None
    raise UserError(
        f"minutes: {asked.minutes:g} are too few for {plan.sweep.max_documents} windows of "
        f"{asked.length:,} tokens and {len(plan.sweep.scalings)} candidates, which take "
        f"{describe_duration(seconds)} here; give minutes={math.ceil(seconds / 60)}, fewer "
        "scalings or a shorter LENGTH"
    )


def _plans(asked: ExtendConfig, loaded: EvalModel, step: int) -> Iterator[ExtendPlan]:
    """Yield what could be done, the best first; with a fit where it was asked for or is an extra.

    It is an extra where enough windows are measured beside it for reliable intervals.
    """
    trained, texts = loaded.training.trained_at(step), loaded.corpus.test.texts()
    long_enough = sum(len(text) >= asked.length for text in texts)
    if not long_enough:
        raise UserError(
            f"data: none of the {len(texts):,} documents has the {asked.length:,} tokens of "
            f"LENGTH; the longest has {max(map(len, texts), default=0):,}"
        )
    # the second is halfway from the window to the start: all are further back than the window
    depths = [0.0, round((1 - trained.window / asked.length) / 2, 3)]
    passkey = "passkey" if loaded.training.tokenizer.type == "bytes" else "passkey_text"
    settings = {
        "name": f"extend-{asked.length}",
        "lengths": lengths_to(trained.window, asked.length),
        "scalings": shortlist(asked, loaded.training, trained),
        "data": asked.data,
        # a plan that was written states every key, and none is a default for the run to decide
        "bos": "none" if loaded.training.tokenizer.start is None else "document",
        "show": "above_truncation",
    }
    can_fit = asked.fit is not False and not lacks_for_fit(asked)
    fits = [*([_fit_config(asked)] if can_fit else []), *([] if asked.fit else [None])]
    for fit, (windows, samples, is_screened) in itertools.product(fits, _SIZES):
        if fit is not None and windows < RELIABLE_UNITS and not asked.fit:
            continue
        task = {"task": passkey, "name": "passkey", "samples": samples, "depths": depths}
        # intervals are over blocks where documents are too few
        blocks = 1 if long_enough >= RELIABLE_UNITS else math.ceil(windows / long_enough)
        size = {"max_documents": windows, "max_blocks": blocks, "tasks": [task]}
        sweep = SweepConfig.model_validate(settings | size)
        screening = _screening_of(sweep) if is_screened else None
        yield ExtendPlan(asked=asked, screening=screening, sweep=sweep, fit=fit)


def _screening_of(sweep: SweepConfig) -> SweepConfig:
    """Return a sweep at the longest length alone, of few other windows and without passkeys."""
    *_, longest = sweep.lengths or ()
    few = {"lengths": (longest,), "max_documents": SCREENING, "max_blocks": 1, "tasks": ()}
    name = {"name": f"{sweep.name}-screening", "show": "nats", "seed": 1}
    return sweep.model_copy(update=name | few)


def _seconds(plan: ExtendPlan, loaded: EvalModel, step: int) -> float:
    """Return about how long a plan takes on this machine."""
    training, texts = loaded.training, loaded.corpus.test.texts()

    def flops_of(sweep: SweepConfig) -> float:
        return loaded.flops(loaded.plan(resolve_run_sweep(sweep, training, [step]), texts, step))

    entries = plan.sweep.scalings[: 2 if plan.screening else None]
    flops = flops_of(plan.sweep.model_copy(update={"scalings": entries}))
    if plan.fit is not None:
        window = training.trained_at(step).window
        flops += flops / len(entries) + _fit_flops(plan.fit, loaded, window)
    if plan.screening is not None:
        flops += flops_of(plan.screening)
    return flops / reached_flops(peak_flops()[0])


def _fit_config(asked: ExtendConfig) -> FitConfig:
    return FitConfig(
        name=f"extend-{asked.length}",
        length=(asked.length,),
        data=asked.data,
        learn=("frequencies", "attention_factor"),
        per="model",
        steps=100,
        batch_tokens=max(4096, asked.length),
        keep_short=0.2,
        check_every=20,
        max_documents=10,
        max_blocks=1,
    )


def _fit_flops(fit: FitConfig, loaded: EvalModel, window: int) -> float:
    """Return about what a fit takes: a step is a forward pass and the half of a backward pass."""
    spec, vocab_size = loaded.model.spec, loaded.model.vocab_size
    lengths = (*fit.length, window)  # keep_short reads as many tokens at the window
    of_step = sum(fit.batch_tokens * flops_per_token(spec, vocab_size, n) for n in lengths) * 2 / 3
    of_check = sum(window_flops(spec, vocab_size, n, window // 2) for n in lengths)
    checks = 3 + fit.steps / fit.check_every  # the table at the end is of two entries
    return fit.steps * of_step + checks * fit.max_documents * of_check
