"""What a sweep found: one tidy row a figure, its documents, and a summary by curve."""

import math
from typing import Any, NamedTuple

from rope_jax.evaluation.protocols import SLIDING
from rope_jax.evaluation.statistics import (
    RELIABLE_DOCUMENTS,
    Estimate,
    mean_nll,
    paired_difference,
    perplexity,
    usable_length,
)
from rope_jax.evaluation.sweep import Measurement, SweepResult


class Row(NamedTuple):
    """One figure. nll and its 95% interval [ci_low, ci_high] in nats a token.

    Scored are the targets at first_position to last_position of each window; sliding, yarn_compat:
    of a document's first window, which counts whole.
    """

    name: str
    scaling: str
    factor: float | None
    auto: bool
    protocol: str
    length: int
    first_position: int
    last_position: int
    step: int
    run: str
    seed: int
    corpus: str
    split: str
    nll: float
    ppl: float
    bpb: float | None
    ci_low: float
    ci_high: float
    reliable: bool
    tokens: int
    documents: int
    targets: str
    stride: int | None
    bos: str
    seconds: float


class DocumentRow(NamedTuple):
    """One document's share in a figure: nll nats over weight tokens (yarn_compat: windows)."""

    name: str
    protocol: str
    length: int
    step: int
    document: int
    nll: float
    weight: float


class Origin(NamedTuple):
    """Where a checkpoint came from; corpus: a fingerprint of the texts, all splits together."""

    run: str
    step: int
    seed: int
    bytes_per_token: float | None
    corpus: str


def rows(result: SweepResult, origin: Origin) -> list[Row]:
    """One row a measurement, in the order they were made."""
    return [_row(result, origin, measurement) for measurement in result.measurements]


def document_rows(result: SweepResult, origin: Origin) -> list[DocumentRow]:
    """What intervals are made of: with it, figures of several runs can be paired and pooled.

    document: a number within the sweep; the same in others whose `targets` are the same. What all
    is compared with, `trained` at the window, is there even if it is no curve of the sweep.
    """
    made: dict[tuple[str, str, int], Measurement] = {}
    for m in (*result.measurements, *result.baseline.values()):
        made.setdefault((m.entry, m.protocol, m.length), m)
    return [
        DocumentRow(*key, origin.step, number, nll, weight)
        for key, m in made.items()
        for number, (nll, weight) in enumerate(zip(*map(list, m.sums), strict=True))
    ]


def summary(result: SweepResult, origin: Origin) -> dict[str, Any]:
    """Usable length, blow-up and gain over truncation by curve, on the same scored tokens.

    Everything is measured against `trained` at the window: that is also what a reader gets who
    drops all but the last window of the text.
    """
    baseline = result.baseline.get("same_tokens")
    curves = {}
    if baseline is not None:
        curves = {e.label: _curve(result, e.label, baseline) for e in result.config.scalings}
    return {
        "run": origin.run,
        "step": origin.step,
        "window": result.window,
        "nll_at_window": baseline.sums.mean() if baseline else None,
        "perplexity_at_window": perplexity(baseline.sums.mean()) if baseline else None,
        "bpb_at_window": _bpb(baseline.sums.mean(), origin) if baseline else None,
        "tolerance_nats": result.config.tolerance,
        "documents": result.documents,
        "reliable": result.documents >= RELIABLE_DOCUMENTS,
        "compilations": result.compilations,
        "curves": curves,
    }


def _curve(result: SweepResult, label: str, baseline: Measurement) -> dict[str, Any]:
    same = {
        m.length: m for m in result.measurements if m.entry == label and m.protocol == "same_tokens"
    }
    differences = {n: _difference(result, m, baseline) for n, m in same.items()}
    bounds = result.window, result.config.tolerance
    usable = usable_length({n: d.at_most for n, d in differences.items()}, *bounds)
    # The figure is the length that is certain; by the lower bounds, up to here none is refuted.
    at_most = usable_length({n: d.at_least for n, d in differences.items()}, *bounds)
    return {
        "usable_length": usable.length,
        "usable_length_is_last_tested": usable.is_last,
        "usable_length_is_known": usable.is_known,
        "usable_length_at_most": at_most.length,
        "usable_length_at_most_is_last_tested": at_most.is_last,
        "blow_up": {n: _interval(*map(perplexity, d)) for n, d in differences.items()},
        "gain_over_truncation_nats": {
            n: _interval(-d.value, -d.high, -d.low) for n, d in differences.items()
        },
        "difference_from_trained_nats": {
            n: _interval(*_difference(result, m, trained))
            for n, m in same.items()
            if (trained := _find(result, "trained", n)) is not None
        },
    }


def _row(result: SweepResult, origin: Origin, m: Measurement) -> Row:
    config = result.config
    nll = mean_nll(m.sums, resamples=config.resamples, seed=config.seed)
    entry = next(e for e in config.scalings if e.label == m.entry)
    return Row(
        name=m.entry,
        scaling=m.scaling.type,
        factor=getattr(m.scaling, "factor", None),
        auto=entry.factor_label == "auto",
        protocol=m.protocol,
        length=m.length,
        first_position=m.first_position,
        last_position=m.length,
        step=origin.step,
        run=origin.run,
        seed=origin.seed,
        corpus=origin.corpus,
        split=config.split,
        nll=nll.value,
        ppl=perplexity(nll.value),
        bpb=_bpb(nll.value, origin),
        ci_low=nll.low,
        ci_high=nll.high,
        reliable=result.documents >= RELIABLE_DOCUMENTS,
        tokens=m.tokens,
        documents=result.documents,
        targets=m.targets,
        stride=_stride(result, m),
        bos=config.bos,
        seconds=round(m.seconds, 4),
    )


def _stride(result: SweepResult, m: Measurement) -> int | None:
    """How far the windows of a document are apart; null where they are drawn."""
    if m.protocol in SLIDING:
        return result.stride
    return {"whole_window": m.length, "per_position": result.longest}.get(m.protocol)


def _difference(result: SweepResult, one: Measurement, other: Measurement) -> Estimate:
    config = result.config
    return paired_difference(one.sums, other.sums, resamples=config.resamples, seed=config.seed)


def _find(result: SweepResult, entry: str, length: int) -> Measurement | None:
    for m in result.measurements:
        if (m.entry, m.length, m.protocol) == (entry, length, "same_tokens"):
            return m
    return None


def _bpb(nll: float, origin: Origin) -> float | None:
    """Bits a byte; None where it is not known how many bytes a token has."""
    return nll / math.log(2) / origin.bytes_per_token if origin.bytes_per_token else None


def _interval(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}
