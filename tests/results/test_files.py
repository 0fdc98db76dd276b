"""The files of a sweep: tables, summary.json, and a folder that is complete or absent."""

import csv
import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from rope_jax.config.load import validate
from rope_jax.config.training import TrainingConfig
from rope_jax.results.files import SweepTables, write_results
from rope_jax.results.rows import DocumentRow, Row
from rope_jax.results.statistics import Estimate, UsableLength
from rope_jax.sweeps.run import sweep_tables, write_folder
from tests.evaluation.test_results import LEVEL, OFFSETS, ORIGIN, TOKENS, measurement, result_of
from tests.report.rows import checkpoint, curve


@pytest.fixture
def result():
    return result_of(
        [measurement(e, n, offset) for e, by in OFFSETS.items() for n, offset in by.items()]
    )


def strict(text):
    """Read standard JSON: no NaN, no Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_csv_and_jsonl_hold_the_rows(result, tmp_path):
    found = sweep_tables([(result, ORIGIN)])
    table = found.rows
    write_results(tmp_path, found)
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
        *("trained", "same_tokens", "16", "500", "1", "1"),
        *map(str, (LEVEL[1] * 4, 4.0, 10.0)),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "documents.csv",
        "results.csv",
        "results.jsonl",
        "summary.json",
    ]


def test_summary_json_has_every_key_in_order(tmp_path):
    pi = curve(
        UsableLength(length=16, is_last=False, is_known=True),
        usable_at_most=UsableLength(length=64, is_last=True, is_known=True),
        blow_up={64: Estimate(1.5, 1.25, math.inf)},
        above_truncation={64: Estimate(0.5, 0.25, 0.75)},
    )
    counts = {"documents": 3, "unit_kind": "blocks", "compilations": 1}
    unknown = {"nll_at_window": math.inf, "perplexity_at_window": math.inf}
    early = checkpoint(step=100, window=8, units=19, **counts, **unknown)
    known = {"nll_at_window": 2.0, "perplexity_at_window": 7.5, "bpb_at_window": 1.0}
    newest = checkpoint(units=20, curves={"pi-auto": pi}, **counts, **known)
    write_results(tmp_path, SweepTables([], [], [newest, early]))
    found = strict((tmp_path / "summary.json").read_text())
    shared = {"documents": 3, "resampled": "blocks"}
    curve_of_pi = {
        "usable_length": 16,
        "usable_length_is_last_tested": False,
        "usable_length_is_known": True,
        "usable_length_at_most": 64,
        "usable_length_at_most_is_last_tested": True,
        "blow_up": {"64": {"value": 1.5, "low": 1.25, "high": None}},
        "above_truncation_nats": {"64": {"value": 0.5, "low": 0.25, "high": 0.75}},
        "gain_over_truncation_nats": {"64": {"value": -0.5, "low": -0.75, "high": -0.25}},
        "difference_from_trained_nats": {},
    }
    wanted = {
        **{"run": "demo", "step": 500, "window": 16, "nll_at_window": 2.0},
        **{"perplexity_at_window": 7.5, "bpb_at_window": 1.0, "tolerance_nats": 0.02, **shared},
        **{"units": 20, "reliable": True, "compilations": 1, "curves": {"pi-auto": curve_of_pi}},
        "tasks": {},
    }
    unknown = dict.fromkeys(("nll_at_window", "perplexity_at_window", "bpb_at_window"))
    early = {"step": 100, "window": 8, "units": 19, "reliable": False, "curves": {}}
    wanted["earlier"] = [wanted | unknown | early]
    assert found == wanted
    assert list(found) == list(wanted)
    assert list(found["curves"]["pi-auto"]) == list(wanted["curves"]["pi-auto"])


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_values_that_are_not_finite_are_null_in_json(tmp_path, value):
    huge, unknown = measurement("trained", 64, 1000.0), measurement("pi-auto", 64, 0.0)
    unknown.sums.nll[7] = value
    found = sweep_tables([(result_of([huge, unknown]), ORIGIN)])
    table, _, (summary,), *_ = found
    assert table[0].ppl == math.inf
    assert str(table[1].nll) == str(value)
    assert summary.curves["pi-auto"].usable.length is None
    write_results(tmp_path, found)
    first, second = map(strict, (tmp_path / "results.jsonl").read_text().splitlines())
    assert first["ppl"] is None
    assert first["nll"] == pytest.approx(1000 + np.average(LEVEL, weights=TOKENS))
    assert [second[name] for name in ("nll", "ppl", "bpb", "ci_low", "ci_high")] == [None] * 5
    found = strict((tmp_path / "summary.json").read_text())["curves"]["pi-auto"]
    for figure in (
        "blow_up",
        "above_truncation_nats",
        "gain_over_truncation_nats",
        "difference_from_trained_nats",
    ):
        assert found[figure]["64"] == {"value": None, "low": None, "high": None}
    # CSV has a word for it
    with (tmp_path / "results.csv").open(newline="") as file:
        assert [row["nll"] for row in csv.DictReader(file)][1] == str(value)


def test_a_folder_that_fails_midway_leaves_the_earlier_sweep(result, tmp_path, monkeypatch):
    stage = {"steps": 200, "seq_len": 16, "batch_size": 1}
    training = validate(TrainingConfig, {"name": "demo", "stages": [stage]}, "here")
    folder, found = tmp_path / "evals/demo", sweep_tables([(result, ORIGIN)])
    figure = Figure((1, 1))
    monkeypatch.setattr("rope_jax.sweeps.run.draw_sweep", lambda *_, **__: {"curve.png": figure})
    write_folder(folder, result.config, found, training)
    earlier = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {"sweep.yaml", "results.csv", "summary.json", "curve.png"} <= set(earlier)

    def fail(*_):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rope_jax.sweeps.run.write_events", fail)
        with pytest.raises(OSError, match="No space left"):
            write_folder(folder, result.config, found, training)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == earlier
    (folder / "stale.txt").write_text("of the earlier sweep")
    write_folder(folder, result.config, found, training)
    assert not (folder / "stale.txt").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["demo"]
