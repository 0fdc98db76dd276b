"""The rows, the summary and the views of a sweep, against figures worked out by hand."""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest

from rope_jax.config.load import validate
from rope_jax.config.sweep import SweepConfig
from rope_jax.evaluation.results import Measurement, SweepResult, rows, summarize
from rope_jax.results.rows import Origin, Row
from rope_jax.results.statistics import Estimate, Sums, UsableLength, mean_nll
from rope_jax.rope.strategies import NoScaling, PIScaling

ORIGIN = Origin(run="demo", step=500, seed=3, corpus="c0ffee")
TOKENS = np.array([4.0] * 24 + [8.0] * 6)
LEVEL = np.linspace(1.0, 3.0, 30)  # nats per token, by document
# Offsets added to every token's NLL, by curve and length. The window is 16.
OFFSETS = {
    "trained": {8: 0.25, 16: 0.0, 32: 0.5, 64: 1.5},
    "pi-auto": {8: 0.25, 16: 0.0, 32: -0.125, 64: 0.01},
}


def measurement(entry, length, offset, *, protocol="same_tokens", first=None, stride=None):
    factor = max(1.0, length / 16)
    return Measurement(
        entry=entry,
        scaling=NoScaling() if entry == "trained" else PIScaling(factor=factor),
        map=None,
        protocol=protocol,
        length=length,
        first_position=first or length - 3,
        stride=stride,
        sums=Sums((LEVEL + offset) * TOKENS, TOKENS, 2.5 * TOKENS),
        unit_documents=np.arange(len(TOKENS)),
        tokens=int(TOKENS.sum()),
        targets="0123456789abcdef",
        seconds=0.123456,
    )


def result_of(measurements, *, window=16, with_baseline=True, **settings):
    raw = {"scalings": ["trained", {"type": "pi", "factor": "auto"}], "resamples": 50, "seed": 1}
    config = validate(SweepConfig, raw | settings, "test")
    baseline = measurement("trained", window, 0.0) if with_baseline else None
    return SweepResult(
        config=config,
        window=window,
        longest=64,
        documents=len(TOKENS),
        unit_kind="documents",
        measurements=measurements,
        baseline=baseline,
        compilations=4,
    )


@pytest.fixture
def result():
    return result_of(
        [measurement(e, n, offset) for e, by in OFFSETS.items() for n, offset in by.items()]
    )


def with_sums(nll, weight=TOKENS, size=None, entry="trained", length=16):
    """Return a measurement with other sums by document."""
    own = {"sums": Sums(np.array(nll), np.array(weight), size)}
    documents = np.arange(len(own["sums"].nll))
    return dataclasses.replace(measurement(entry, length, 0.0), unit_documents=documents, **own)


# Rows


def test_a_row_has_every_field(result):
    row = rows(result, ORIGIN)[-1]
    nll = np.average(LEVEL, weights=TOKENS) + 0.01
    interval = mean_nll(result.measurements[-1].sums, resamples=50, seed=1)
    # 2.5 bytes per token: nats per token → bits per byte
    in_bits = 1 / 2.5 / math.log(2)
    wanted = {
        **{"nll": nll, "value": nll, "ppl": math.exp(nll), "bpb": nll * in_bits},
        **{"ci_low": interval.low, "ci_high": interval.high},
        **{"bpb_low": interval.low * in_bits, "bpb_high": interval.high * in_bits},
    }
    found = row._asdict()
    assert {name: found.pop(name) for name in wanted} == pytest.approx(wanted, rel=1e-12)
    assert found == {
        **{"name": "pi-auto", "scaling": "pi", "map": "", "factor": 4.0, "auto": True},
        **{"protocol": "same_tokens", "length": 64, "first_position": 61, "last_position": 64},
        **{"step": 500, "run": "demo", "seed": 3, "corpus": "c0ffee", "split": "test"},
        **{"metric": "nats", "reliable": True, "tokens": 24 * 4 + 6 * 8, "documents": 30},
        **{"units": 30, "targets": "0123456789abcdef", "stride": None, "bos": "document"},
        "seconds": 0.1235,
    }
    assert row.ci_low < row.nll < row.ci_high


def test_rows_have_the_settings_of_their_entries_in_the_order_of_the_measurements(result):
    lengths = (8, 16, 32, 64)
    found = [(row.name, row.factor, row.auto, row.length) for row in rows(result, ORIGIN)]
    assert found == [
        *(("trained", None, False, n) for n in lengths),
        *(("pi-auto", max(1.0, n / 16), True, n) for n in lengths),
    ]
    settings = {"scalings": [{"type": "pi", "factor": 4, "name": "fixed"}]}
    one = measurement("fixed", 64, 0.0, protocol="sliding", first=9, stride=4)
    (row,) = rows(result_of([one], **settings), ORIGIN)
    assert (row.name, row.scaling, row.factor, row.auto) == ("fixed", "pi", 4.0, False)
    assert (row.protocol, row.stride, row.first_position) == ("sliding", 4, 9)


@pytest.mark.parametrize("size", [None, np.where(TOKENS == 4, 10.0, 0.0)])
def test_tokens_of_unknown_width_have_no_bits_per_byte(size):
    (row,) = rows(result_of([with_sums(LEVEL * TOKENS, size=size)]), ORIGIN)
    assert (row.bpb, row.bpb_low, row.bpb_high) == (None, None, None)


def test_bits_per_byte_are_of_the_bytes_that_are_scored_and_so_is_their_interval():
    """Documents of 1 byte per token and of many: the interval is that of Σ nats / Σ bytes."""
    size = TOKENS * np.linspace(1.0, 7.0, 30) ** 2
    (row,) = rows(result_of([with_sums(LEVEL * TOKENS, size=size)]), ORIGIN)
    by_byte = mean_nll(Sums(LEVEL * TOKENS, size), resamples=50, seed=1)
    wanted = np.array(by_byte) / math.log(2)
    assert (row.bpb, row.bpb_low, row.bpb_high) == pytest.approx(tuple(wanted), rel=1e-12)
    # long tokens cost more here, but not as much more as they are longer: not the scaled interval
    scaled = np.array([row.ci_low, row.ci_high]) * row.bpb / row.nll
    assert abs(row.bpb_low / scaled[0] - 1) > 0.02


@pytest.mark.parametrize(("documents", "reliable"), [(19, False), (20, True)])
def test_few_documents_are_marked(documents, reliable):
    one = with_sums(LEVEL[:documents] * 4, np.full(documents, 4.0))
    result = dataclasses.replace(result_of([one]), documents=documents, baseline=one)
    assert rows(result, ORIGIN)[0].reliable is reliable
    assert summarize(result, ORIGIN).is_reliable is reliable


# The summary


def test_the_summary_matches_figures_worked_out_by_hand(result):
    summary = summarize(result, ORIGIN)
    trained, pi = (summary.curves[name] for name in ("trained", "pi-auto"))
    # Every offset is the same for all documents: the intervals have no width.
    for curve, offsets in ((trained, OFFSETS["trained"]), (pi, OFFSETS["pi-auto"])):
        for n, offset in offsets.items():
            # worse than at the window: blow-up above 1, and a loss against truncation
            assert curve.blow_up[n] == pytest.approx([math.exp(offset)] * 3)
            assert curve.above_truncation[n] == pytest.approx([offset] * 3, abs=1e-12)
            difference = offset - OFFSETS["trained"][n]
            assert curve.difference_from_trained[n] == pytest.approx([difference] * 3, abs=1e-12)
    # trained exceeds 0.02 nats at 32 already; pi stays within to the last length
    assert trained.usable == UsableLength(length=16, is_last=False, is_known=True)
    assert pi.usable == UsableLength(length=64, is_last=True, is_known=True)
    assert (trained.usable_at_most.length, pi.usable_at_most.length) == (16, 64)
    level = np.average(LEVEL, weights=TOKENS)
    assert summary.nll_at_window == pytest.approx(level)
    assert summary.perplexity_at_window == pytest.approx(math.exp(level))
    assert summary.bpb_at_window == pytest.approx(level / 2.5 / math.log(2))
    assert (summary.run, summary.step, summary.window) == ("demo", 500, 16)
    assert (summary.tolerance, summary.documents, summary.compilations) == (0.02, 30, 4)
    assert summary.is_reliable
    tolerant = summarize(result_of(result.measurements, tolerance=0.6), ORIGIN)
    assert tolerant.curves["trained"].usable.length == 32


def test_differences_and_blow_up_have_the_ends_of_one_interval():
    noise = np.random.default_rng(0).normal(0.05, 0.3, 30)
    one = with_sums((LEVEL + noise) * TOKENS, entry="pi-auto", length=64)
    result = result_of([one, measurement("trained", 64, 0.05)])
    curve = summarize(result, ORIGIN).curves["pi-auto"]
    blow_up, above = curve.blow_up[64], curve.above_truncation[64]
    versus = curve.difference_from_trained[64]
    for estimate in (blow_up, above, versus):
        assert estimate.low < estimate.value < estimate.high
    assert above.value == pytest.approx(np.average(noise, weights=TOKENS))
    assert math.log(blow_up.high) == pytest.approx(above.high)
    assert math.log(blow_up.low) == pytest.approx(above.low)
    assert versus.low == pytest.approx(above.low - 0.05)
    # the usable length uses the upper bound, which exceeds the tolerance though the value does not
    assert curve.usable.length is None
    assert curve.usable_at_most.length == 64  # the lower bound is within the tolerance


def test_without_a_baseline_there_are_no_curves():
    summary = summarize(result_of([measurement("trained", 64, 0.0)], with_baseline=False), ORIGIN)
    assert summary.curves == {}
    assert (summary.perplexity_at_window, summary.nll_at_window) == (None, None)


@pytest.mark.parametrize(
    ("trained", "entry", "is_trained"),
    [
        (NoScaling(), {"type": "none", "name": "plain"}, True),
        (PIScaling(factor=4), {"type": "pi", "factor": 4}, True),
        (PIScaling(factor=4), {"type": "pi", "factor": 2}, False),
        # at 64 it happens to be the trained scaling, at other lengths it is not
        (PIScaling(factor=4), {"type": "pi", "factor": "auto"}, False),
        (PIScaling(factor=1), {"type": "pi", "factor": "auto"}, False),
    ],
)
def test_an_entry_equal_to_the_trained_scaling_is_what_others_are_compared_with(
    trained, entry, is_trained
):
    scalings = [{"type": "ntk", "factor": "auto"}, entry]
    label = result_of([], scalings=scalings).config.scalings[1].label
    made = [measurement("ntk-auto", 64, 0.75), measurement(label, 64, 0.25)]
    result = result_of(made, scalings=scalings)
    baseline = dataclasses.replace(result.baseline, scaling=trained)
    summary = summarize(dataclasses.replace(result, baseline=baseline), ORIGIN)
    found = {name: curve.difference_from_trained for name, curve in summary.curves.items()}
    if is_trained:
        assert found["ntk-auto"][64] == pytest.approx([0.5] * 3)
        assert found[label][64] == Estimate(0, 0, 0)
    else:
        assert found == {"ntk-auto": {}, label: {}}


def test_an_infinite_baseline_curve_is_summarized_without_warnings():
    # The trained scaling often is the first to overflow, and is compared with itself.
    nll = np.where(np.arange(30) == 7, math.inf, LEVEL * TOKENS)
    result = result_of([with_sums(nll, length=64), measurement("pi-auto", 64, 0.25)])
    curves = summarize(result, ORIGIN).curves
    assert math.isnan(curves["trained"].difference_from_trained[64].value)
    assert curves["trained"].blow_up[64].value == math.inf
    assert curves["pi-auto"].difference_from_trained[64].value == -math.inf


# What a notebook shows


def test_the_frame_has_the_values_of_results_csv_without_those_of_a_run(result):
    frame = result.to_frame()
    assert list(frame) == [
        name for name in Row._fields if name not in ("step", "run", "seed", "corpus", "split")
    ]
    wanted = rows(result, ORIGIN)
    assert len(frame) == len(wanted) == 8
    for name in frame:
        for value, row in zip(frame[name], wanted, strict=True):
            expected = getattr(row, name)
            if expected is None:
                assert (name == "factor" and math.isnan(value)) or name == "stride"
            else:
                assert value == expected, name


def test_the_frame_can_be_computed_with(result):
    measured = [
        dataclasses.replace(m, sums=m.sums._replace(bytes=None)) for m in result.measurements
    ]
    frame = dataclasses.replace(result, measurements=measured).to_frame()
    assert frame.bpb.isna().all()
    types = {"factor": "float64", "bpb": "float64", "stride": "Int64", "nll": "float64"}
    assert {name: str(frame[name].dtype) for name in types} == types
    # the offsets of the two curves, back from the frame
    wide = frame.pivot(index="length", columns="name", values="nll")
    difference = (wide["pi-auto"] - wide["trained"]).to_dict()
    assert difference == pytest.approx({8: 0, 16: 0, 32: -0.625, 64: -1.49})


def test_a_notebook_shows_perplexities(result):
    shown = result._repr_html_()
    for row in rows(result, ORIGIN):
        assert f"<td>{row.ppl:.3f}</td>" in shown


HEAVY = "scipy.stats", "matplotlib", "pandas", "datasets", "orbax", "plotly"


@pytest.mark.slow
def test_the_library_is_imported_without_what_it_does_not_need_yet():
    program = f"import sys, rope_jax.evaluation; print(*[m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
