"""Summarize each curve of a sweep, as `results.summary` defines it."""

from rope_jax.evaluation.results import Measurement, SweepResult, sample_rows
from rope_jax.positions.maps import first_changed_distance
from rope_jax.protocols import BASELINE
from rope_jax.results.rows import Origin
from rope_jax.results.statistics import (
    bits_per_byte,
    established_length,
    paired_difference,
    perplexity,
    usable_length,
)
from rope_jax.results.summary import CheckpointSummary, CurveSummary
from rope_jax.results.tasks import summarize_tasks


def summarize(result: SweepResult, origin: Origin) -> CheckpointSummary:
    """Summarize the sweep of one checkpoint."""
    baseline = result.baseline
    nll = bits = None
    curves = {}
    if baseline is not None:
        nll = baseline.sums.mean()
        bits = bits_per_byte([baseline.sums], **result.resampling)
        reference = _trained_entry(result, baseline)
        for entry in result.config.scalings:
            curves[entry.label] = _curve(result, entry.label, baseline, reference)
    counts = [len(m.sums.nll) for m in result.measurements]
    return CheckpointSummary(
        run=origin.run,
        step=origin.step,
        window=result.window,
        nll_at_window=nll,
        perplexity_at_window=None if nll is None else perplexity(nll),
        bpb_at_window=None if bits is None else bits.value,
        tolerance=result.config.tolerance,
        documents=result.documents,
        unit_kind=result.unit_kind if max(counts) > result.documents else "documents",
        units=min(counts),
        distance=result.longest,
        compilations=result.compilations,
        curves=curves,
        tasks=summarize_tasks(
            sample_rows(result, origin), result.config.threshold, **result.resampling
        ),
        borders=_borders(result),
    )


def _borders(result: SweepResult) -> dict[str, int]:
    found: dict[str, int] = {}
    for m in sorted(result.task_measurements, key=lambda m: m.length):
        bands = () if m.map is None else m.map.bands(result.window, m.length)
        border = first_changed_distance(bands, m.length) if bands else None
        if border is not None:
            found[m.entry] = border
    return found


def _trained_entry(result: SweepResult, baseline: Measurement) -> str | None:
    """Return the name of the entry that equals the checkpoint's own scaling, if there is one.

    An `auto` factor that happens to equal the trained one at some lengths does not count.
    """
    trained, window = baseline.scaling, result.window
    same = [
        entry
        for entry in result.config.scalings
        if not entry.is_auto
        and entry.at(window, window, trained) == trained
        and entry.map_at(window, window, baseline.map) == baseline.map
    ]
    same.sort(key=lambda entry: entry.type != "trained")  # `trained` itself comes first
    return same[0].label if same else None


def _curve(
    result: SweepResult, name: str, baseline: Measurement, reference: str | None
) -> CurveSummary:
    own = _same_tokens(result, name)
    trained = {} if reference is None else _same_tokens(result, reference)
    how = result.resampling
    losses = {n: paired_difference(m.sums, baseline.sums, **how) for n, m in own.items()}
    window, tolerance = result.window, result.config.tolerance
    return CurveSummary(
        usable=established_length(
            losses, window, tolerance, units=min((len(m.sums.nll) for m in own.values()), default=0)
        ),
        usable_at_most=usable_length({n: d.at_least for n, d in losses.items()}, window, tolerance),
        blow_up={n: loss.mapped(perplexity) for n, loss in losses.items()},
        gain_over_truncation={n: loss.negated() for n, loss in losses.items()},
        difference_from_trained={
            n: paired_difference(m.sums, trained[n].sums, **how)
            for n, m in own.items()
            if n in trained
        },
    )


def _same_tokens(result: SweepResult, name: str) -> dict[int, Measurement]:
    return {m.length: m for m in result.measurements if m.entry == name and m.protocol == BASELINE}
