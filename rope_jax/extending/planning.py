"""Decide what an extension measures: candidates, lengths, and as many texts as time allows."""

import math
from collections.abc import Iterator

from rope_jax.config.data import StdlibData
from rope_jax.config.entries import SweepEntry, Trained, TrainedEntry, parse_entries
from rope_jax.config.extend import ExtendConfig, ExtendPlan
from rope_jax.config.fit import FitConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig
from rope_jax.console import describe_duration
from rope_jax.devices.hardware import peak_flops, reached_flops
from rope_jax.errors import UserError
from rope_jax.evaluation.plan import check_entries
from rope_jax.model.cost import flops_per_token, window_flops
from rope_jax.protocols.base import RELIABLE_UNITS
from rope_jax.sweeps.model import EvalModel
from rope_jax.sweeps.resolve import resolve_run_sweep

FORMULAS = ("yarn", "ntk", "llama3", "pi")
"""Strategies with a fixed factor that transformers, vLLM or llama.cpp can read with."""
_SIZES = ((64, 8), (32, 4), (RELIABLE_UNITS, 3), (10, 2), (5, 1))
"""Scored windows at each length, one per document where those suffice, and passkeys per depth."""


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

    Factors are fixed, because a runtime does not know how long a text will become. UserError: no
    formula fits the model.
    """
    s, own = asked.length / trained.window, trained.scaling
    if asked.scalings is not None:
        fixed = (_fixed(entry, s, trained) for entry in asked.scalings)
        return parse_entries(*(entry.model_dump(exclude_none=True) for entry in fixed))
    is_plain = own.type == "none" and training.geometry.train_length == trained.window
    over = {} if is_plain else {"over": "trained"}
    entries = parse_entries(
        {"type": "trained", "factor": s * (getattr(own, "factor", None) or 1.0)},
        *({"type": name, "factor": s, **over} for name in FORMULAS),
    )
    layers, fitting, errors = training.rotary_layers, list[SweepEntry](), list[UserError]()
    for entry in entries:
        try:
            check_entries((entry,), layers, trained, asked.length)
            fitting.append(entry)
        except UserError as error:
            errors.append(error)
    if not fitting:
        raise errors[-1]
    return (TrainedEntry(), *fitting)


def _fixed(entry: SweepEntry, factor: float, trained: Trained) -> SweepEntry:
    if not entry.factor_is_auto:
        return entry
    if isinstance(entry, TrainedEntry):
        factor *= getattr(trained.scaling, "factor", None) or 1.0
    return entry.model_copy(update={"factor": factor})


def lacks_for_fit(asked: ExtendConfig) -> str:
    """Return why the texts are not for a fit, "" if they are: it must not see what is measured."""
    files = getattr(asked.data, "files", None)
    if asked.data is None or isinstance(asked.data, StdlibData):
        return ""
    if isinstance(files, dict) and files.keys() >= {"train", "validation", "test"}:
        return ""
    return "the texts have no splits; name data.files.train, data.files.validation and .test"


def make_plan(asked: ExtendConfig, loaded: EvalModel, step: int) -> tuple[ExtendPlan, float]:
    """Return the plan with as many texts as `minutes` allow, and the seconds that it takes here.

    A fit is in it if it was asked for, or if it leaves time for reliable intervals.

    UserError: not even the fewest texts can be read in that time, or none is long enough.
    """
    training, length = loaded.training, asked.length
    trained = training.trained_at(step)
    texts = loaded.corpus.test.texts()
    long_enough = sum(len(text) >= length for text in texts)
    if not long_enough:
        raise UserError(
            f"data: none of the {len(texts):,} documents has the {length:,} tokens of LENGTH; the "
            f"longest has {max(map(len, texts), default=0):,}"
        )
    entries, fit, flops = shortlist(asked, training, trained), None, math.inf
    if asked.fit is not False and not lacks_for_fit(asked):
        fit = _fit_config(asked)
    speed = reached_flops(peak_flops()[0])
    for windows, passkeys, is_fitted in _choices(asked.fit, fit):
        sweep = _sweep_config(asked, loaded, trained, entries, (windows, passkeys), long_enough)
        resolved = resolve_run_sweep(sweep, training, [step])
        flops = loaded.flops(loaded.plan(resolved, texts, step))
        if is_fitted and fit is not None:
            flops += flops / len(entries) + _fit_flops(fit, loaded, trained.window)
        if flops <= 60 * asked.minutes * speed:
            plan = ExtendPlan(asked=asked, sweep=sweep, fit=fit if is_fitted else None)
            return plan, flops / speed
    least = math.ceil(flops / speed / 60)
    raise UserError(
        f"minutes: {asked.minutes:g} are too few for {_SIZES[-1][0]} windows of {length:,} tokens "
        f"with {len(entries)} candidates, which take {describe_duration(flops / speed)} here; give "
        f"minutes={least}, fewer scalings or a shorter LENGTH"
    )


def _choices(asked: bool | None, fit: FitConfig | None) -> Iterator[tuple[int, int, bool]]:
    """Yield numbers of windows and passkeys, and whether there is a fit, the best ones first."""
    if fit is not None:
        yield from ((n, k, True) for n, k in _SIZES if asked or n >= RELIABLE_UNITS)
    if not asked:
        yield from ((n, k, False) for n, k in _SIZES)


def _sweep_config(
    asked: ExtendConfig,
    loaded: EvalModel,
    trained: Trained,
    entries: tuple[SweepEntry, ...],
    size: tuple[int, int],
    long_enough: int,
) -> SweepConfig:
    windows, samples = size
    # all of them further back than the window is long
    deepest = round((1 - trained.window / asked.length) / 2, 3)
    task = "passkey" if loaded.training.tokenizer.type == "bytes" else "passkey_text"
    passkey = {"task": task, "name": "passkey", "samples": samples, "depths": [0.0, deepest]}
    return SweepConfig.model_validate(
        {
            "name": f"extend-{asked.length}",
            "lengths": lengths_to(trained.window, asked.length),
            "scalings": entries,
            "tasks": [passkey],
            "data": asked.data,
            "max_documents": windows,
            "max_blocks": math.ceil(windows / min(windows, long_enough)),
            "show": "above_truncation",
        }
    )


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
