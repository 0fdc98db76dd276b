"""What a sweep leaves on disk, against figures worked out by hand."""

import csv
import json
import math
import resource

import numpy as np
import pytest

from rope_jax.config.explain import validate
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError
from rope_jax.evaluation.results import DocumentRow, Origin, Row, document_rows, rows, summary
from rope_jax.evaluation.statistics import Sums, mean_nll
from rope_jax.evaluation.sweep import Measurement, SweepResult
from rope_jax.rope.strategies import NoScaling, PIScaling
from rope_jax.sweeps.results_files import write

ORIGIN = Origin(run="demo", step=500, seed=3, bytes_per_token=2.5, corpus="c0ffee")
TOKENS = np.array([4.0] * 24 + [8.0] * 6)
LEVEL = np.linspace(1.0, 3.0, 30)  # nats a token, by document
# What is added to every token's NLL: by curve and length. The window is 16.
OFFSETS = {
    "trained": {8: 0.25, 16: 0.0, 32: 0.5, 64: 1.5},
    "pi-auto": {8: 0.25, 16: 0.0, 32: -0.125, 64: 0.01},
}


def measurement(entry, length, offset, *, protocol="same_tokens", first=None, seconds=0.123456):
    factor = max(1.0, length / 16)
    return Measurement(
        entry=entry,
        scaling=NoScaling() if entry == "trained" else PIScaling(factor=factor),
        protocol=protocol,
        length=length,
        first_position=first or length - 3,
        sums=Sums((LEVEL + offset) * TOKENS, TOKENS),
        tokens=int(TOKENS.sum()),
        targets="0123456789abcdef",
        seconds=seconds,
    )


def result_of(measurements, *, window=16, with_baseline=True, **settings):
    raw = {"scalings": ["trained", {"type": "pi", "factor": "auto"}], "resamples": 50, "seed": 1}
    config = validate(SweepConfig, raw | settings, "test")
    baseline = {"same_tokens": measurement("trained", window, 0.0)} if with_baseline else {}
    return SweepResult(
        config=config,
        window=window,
        longest=64,
        stride=4,
        documents=len(TOKENS),
        measurements=measurements,
        baseline=baseline,
        compilations=4,
    )


@pytest.fixture
def result():
    return result_of(
        [measurement(e, n, offset) for e, by in OFFSETS.items() for n, offset in by.items()]
    )


# Rows


def test_a_rows_fields(result):
    row = rows(result, ORIGIN)[-1]
    nll = np.average(LEVEL, weights=TOKENS) + 0.01
    interval = mean_nll(result.measurements[-1].sums, resamples=50, seed=1)
    assert row._replace(nll=0, ppl=0, bpb=0) == Row(
        name="pi-auto",
        scaling="pi",
        factor=4.0,
        auto=True,
        protocol="same_tokens",
        length=64,
        first_position=61,
        last_position=64,
        step=500,
        run="demo",
        seed=3,
        corpus="c0ffee",
        split="test",
        nll=0,
        ppl=0,
        bpb=0,
        ci_low=interval.low,
        ci_high=interval.high,
        reliable=True,
        tokens=24 * 4 + 6 * 8,
        documents=30,
        targets="0123456789abcdef",
        stride=None,
        bos="document",
        seconds=0.1235,
    )
    assert row.nll == pytest.approx(nll, rel=1e-12)
    assert row.ppl == pytest.approx(math.exp(nll), rel=1e-12)
    # 2.5 bytes a token: nats a token → bits a byte
    assert row.bpb == pytest.approx(nll / 2.5 * math.log2(math.e), rel=1e-12)
    assert row.ci_low < row.nll < row.ci_high


def test_rows_stand_in_the_order_of_measuring(result):
    found = [(row.name, row.length) for row in rows(result, ORIGIN)]
    assert found == [(entry, n) for entry in OFFSETS for n in OFFSETS[entry]]


def test_a_row_of_the_trained_scaling_has_its_type_and_no_factor(result):
    row = rows(result, ORIGIN)[0]
    assert (row.name, row.scaling, row.factor, row.auto) == ("trained", "none", None, False)


def test_a_fixed_factor_is_not_automatic():
    settings = {"scalings": [{"type": "pi", "factor": 4, "name": "fixed"}]}
    result = result_of([measurement("fixed", 64, 0.0)], **settings)
    (row,) = rows(result, ORIGIN)
    assert (row.name, row.scaling, row.factor, row.auto) == ("fixed", "pi", 4.0, False)


@pytest.mark.parametrize(
    ("protocol", "length", "stride"),
    [
        ("same_tokens", 16, None),
        ("whole_window", 16, 16),
        ("per_position", 16, 64),  # windows of 64, however far they are read
        ("sliding", 16, 4),
        ("yarn_compat", 16, 4),
    ],
)
def test_the_stride_is_how_far_windows_are_apart(protocol, length, stride):
    one = measurement("trained", length, 0.0, protocol=protocol, first=9)
    (row,) = rows(result_of([one]), ORIGIN)
    assert (row.stride, row.first_position, row.last_position) == (stride, 9, 16)


def test_tokens_of_unknown_width_have_no_bits_per_byte(result):
    assert rows(result, ORIGIN._replace(bytes_per_token=None))[0].bpb is None


@pytest.mark.parametrize(("documents", "reliable"), [(19, False), (20, True)])
def test_few_documents_are_marked(documents, reliable):
    sums = Sums(LEVEL[:documents] * 4, np.full(documents, 4.0))
    one = measurement("trained", 16, 0.0)
    one = Measurement(**(vars(one) | {"sums": sums}))
    config = result_of([]).config
    result = SweepResult(config, 16, 64, 4, documents, [one], {"same_tokens": one}, 1)
    assert rows(result, ORIGIN)[0].reliable is reliable
    assert summary(result, ORIGIN)["reliable"] is reliable


# The summary


def test_the_summary_by_hand(result):
    about = summary(result, ORIGIN)
    trained, pi = (about["curves"][name] for name in ("trained", "pi-auto"))
    # Every offset is the same for all documents: the intervals have no width.
    for curve, offsets in ((trained, OFFSETS["trained"]), (pi, OFFSETS["pi-auto"])):
        for n, offset in offsets.items():
            for end in ("value", "low", "high"):
                # worse than at the window: blow-up above 1, and a loss over truncation
                assert curve["blow_up"][n][end] == pytest.approx(math.exp(offset))
                gain = curve["gain_over_truncation_nats"][n][end]
                assert gain == pytest.approx(-offset, abs=1e-12)
                difference = curve["difference_from_trained_nats"][n][end]
                assert difference == pytest.approx(offset - OFFSETS["trained"][n], abs=1e-12)
    # trained passes 0.02 nats at 32 already; pi stays within to the last
    assert (trained["usable_length"], trained["usable_length_is_last_tested"]) == (16, False)
    assert (pi["usable_length"], pi["usable_length_is_last_tested"]) == (64, True)
    assert (trained["usable_length_at_most"], pi["usable_length_at_most"]) == (16, 64)
    del about["curves"]
    level = np.average(LEVEL, weights=TOKENS)
    assert about.pop("nll_at_window") == pytest.approx(level)
    assert about.pop("perplexity_at_window") == pytest.approx(math.exp(level))
    assert about.pop("bpb_at_window") == pytest.approx(level / 2.5 / math.log(2))
    assert about == {
        "run": "demo",
        "step": 500,
        "window": 16,
        "tolerance_nats": 0.02,
        "documents": 30,
        "reliable": True,
        "compilations": 4,
    }


def test_the_tolerance_is_the_configs():
    by_length = OFFSETS["trained"].items()
    result = result_of([measurement("trained", n, o) for n, o in by_length], tolerance=0.6)
    assert summary(result, ORIGIN)["curves"]["trained"]["usable_length"] == 32


def test_intervals_turn_around_with_the_sign():
    one = measurement("pi-auto", 64, 0.0)
    noise = np.random.default_rng(0).normal(0.05, 0.3, 30)
    one = Measurement(**(vars(one) | {"sums": Sums(one.sums.nll + noise * TOKENS, TOKENS)}))
    curve = summary(result_of([one, measurement("trained", 64, 0.05)]), ORIGIN)["curves"]["pi-auto"]
    blow_up, gain = curve["blow_up"][64], curve["gain_over_truncation_nats"][64]
    versus = curve["difference_from_trained_nats"][64]
    for interval in (blow_up, gain, versus):
        assert interval["low"] < interval["value"] < interval["high"]
    assert gain["value"] == pytest.approx(-np.average(noise, weights=TOKENS))
    assert math.log(blow_up["high"]) == pytest.approx(-gain["low"])
    assert math.log(blow_up["low"]) == pytest.approx(-gain["high"])
    assert versus["low"] == pytest.approx(-gain["high"] - 0.05)
    # usable goes by the upper bound: though the value were within, the bound is not
    assert curve["usable_length"] is None
    assert curve["usable_length_at_most"] == 64  # and the lower bound is


def test_without_a_baseline_there_are_no_curves():
    about = summary(result_of([measurement("trained", 64, 0.0)], with_baseline=False), ORIGIN)
    assert about["curves"] == {}
    assert about["perplexity_at_window"] is None


def test_without_the_trained_curve_nothing_is_compared_with_it():
    only = {"scalings": [{"type": "pi", "factor": "auto"}]}
    result = result_of([measurement("pi-auto", 64, 0.25)], **only)
    curve = summary(result, ORIGIN)["curves"]["pi-auto"]
    assert curve["difference_from_trained_nats"] == {}
    assert curve["gain_over_truncation_nats"][64]["value"] == pytest.approx(-0.25)


def test_another_curve_may_not_pass_for_the_trained_one():
    only = {"scalings": [{"type": "pi", "factor": "auto", "name": "trained"}]}
    try:
        result = result_of([measurement("trained", 64, 0.25)], **only)
    except UserError:  # refusing the name is an answer too
        return
    curve = summary(result, ORIGIN)["curves"]["trained"]
    assert curve["difference_from_trained_nats"] == {}


# The files


def strict(text):
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_csv_and_jsonl_hold_the_rows(result, tmp_path):
    table = rows(result, ORIGIN)
    write(tmp_path, table, document_rows(result, ORIGIN), summary(result, ORIGIN))
    lines = [strict(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [Row(**line) for line in lines] == table
    with (tmp_path / "results.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [list(row) for row in cells] == [list(Row._fields)] * len(table)
    for row, line in zip(cells, lines, strict=True):
        for name, value in line.items():
            assert row[name] == ("" if value is None else str(value))
    with (tmp_path / "documents.csv").open(newline="") as file:
        header, *documents = csv.reader(file)
    assert header == list(DocumentRow._fields)
    assert len(documents) == 30 * len(table)
    assert documents[31] == [
        *("trained", "same_tokens", "16", "500", "1"),
        *map(str, (LEVEL[1] * 4, 4.0)),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "documents.csv",
        "results.csv",
        "results.jsonl",
        "summary.json",
    ]


def test_the_summary_file_is_the_summary(result, tmp_path):
    about = summary(result, ORIGIN)
    write(tmp_path, rows(result, ORIGIN), [], about)
    found = strict((tmp_path / "summary.json").read_text())
    # lengths become text as keys
    for name, curve in about["curves"].items():
        for figure, by_length in curve.items():
            if isinstance(by_length, dict):
                by_length = {str(n): value for n, value in by_length.items()}
            assert found["curves"][name][figure] == by_length
    assert {k: v for k, v in found.items() if k != "curves"} == {
        k: v for k, v in about.items() if k != "curves"
    }


def infinite(entry, length, value):
    """A measurement with one document's NLL replaced."""
    one = measurement(entry, length, 0.0)
    nll = one.sums.nll.copy()
    nll[7] = value
    return Measurement(**(vars(one) | {"sums": Sums(nll, TOKENS)}))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_is_null_in_json(tmp_path, value):
    result = result_of([measurement("trained", 64, 1.0), infinite("pi-auto", 64, value)])
    table, about = rows(result, ORIGIN), summary(result, ORIGIN)
    assert str(table[1].nll) == str(value)
    assert about["curves"]["pi-auto"]["usable_length"] is None
    write(tmp_path, table, [], about)
    first, second = map(strict, (tmp_path / "results.jsonl").read_text().splitlines())
    assert first["nll"] is not None
    assert [second[name] for name in ("nll", "ppl", "bpb", "ci_low", "ci_high")] == [None] * 5
    curve = strict((tmp_path / "summary.json").read_text())["curves"]["pi-auto"]
    for figure in ("blow_up", "gain_over_truncation_nats", "difference_from_trained_nats"):
        assert curve[figure]["64"] == {"value": None, "low": None, "high": None}
    # CSV has a word for it
    with (tmp_path / "results.csv").open(newline="") as file:
        assert [row["nll"] for row in csv.DictReader(file)][1] == str(value)


def test_an_infinite_baseline_curve_is_summed_up_quietly():
    # The trained scaling itself often overflows first, and is compared with itself.
    result = result_of([infinite("trained", 64, math.inf), measurement("pi-auto", 64, 0.25)])
    curves = summary(result, ORIGIN)["curves"]
    assert math.isnan(curves["trained"]["difference_from_trained_nats"][64]["value"])
    assert curves["trained"]["blow_up"][64]["value"] == math.inf
    assert curves["pi-auto"]["difference_from_trained_nats"][64]["value"] == -math.inf


def test_a_perplexity_too_large_for_a_float_leaves_its_nll(tmp_path):
    result = result_of([measurement("trained", 64, 1000.0)])
    table = rows(result, ORIGIN)
    assert table[0].ppl == math.inf
    write(tmp_path, table, document_rows(result, ORIGIN), summary(result, ORIGIN))
    line = strict((tmp_path / "results.jsonl").read_text())
    assert line["ppl"] is None
    assert line["nll"] == pytest.approx(1000 + np.average(LEVEL, weights=TOKENS))


@pytest.mark.parametrize("fails", [0, 1, 2, 3])
def test_a_write_that_fails_midway_leaves_the_old_file(result, tmp_path, fails):
    names = [
        "results.csv",
        "results.jsonl",
        "documents.csv",
        "summary.json",
    ]  # in the order they are written
    table, about = rows(result, ORIGIN), summary(result, ORIGIN)
    by_document = document_rows(result, ORIGIN) * 10
    (tmp_path / "old").mkdir()
    write(tmp_path / "old", table[:1], by_document[:1], about)
    old = [(tmp_path / "old" / name).read_text() for name in names]
    (tmp_path / "new").mkdir()
    about |= {"long": "x" * 300_000}
    write(tmp_path / "new", table * 20, by_document, about)
    new = [(tmp_path / "new" / name).read_text() for name in names]
    sizes = [0, *map(len, new)]
    assert sizes == sorted(sizes)
    # The disk is full halfway through the file in question, not before.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = (sizes[fails] + sizes[fails + 1]) // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path / "old", table * 20, by_document, about)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    found = [(tmp_path / "old" / name).read_text() for name in names]
    assert found == new[:fails] + old[fails:]
