"""`rope-jax harness`: what it measures, writes and prints, how it resumes, what it refuses."""

import csv
import itertools
import json
import statistics
import sys
from pathlib import Path

import pytest

from rope_jax.commands.main import main
from rope_jax.harness.model import HarnessModel
from rope_jax.harness.results import harness_table, result_rows
from tests.sweeps.conftest import run

__all__ = ["run"]
ROOT = Path(__file__).parents[2]
TASKS = "tests/harness/tasks"
WORDS = (f"tasks=[{TASKS}/choices.yaml,{TASKS}/perplexity.yaml]", "scalings=[trained,yarn]")
WORDS += ("lengths=[16,96]", "batch_size=4")


@pytest.fixture
def harness(run, call, monkeypatch):
    """Return a function that runs the command on the tiny run."""
    monkeypatch.chdir(ROOT)  # the tasks name their texts from there
    return lambda *words: call(main, "rope-jax", "harness", str(run[0].path), *words)


def test_every_task_scaling_and_length_is_measured_once(run, harness, monkeypatch):
    folder = run[0].path / "harness" / "harness"

    def table():
        rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
        return [{key: x for key, x in row.items() if key != "seconds"} for row in rows]

    status, out, _ = harness(*WORDS)
    assert status == 0
    rows = table()
    metrics = {"acc", "acc_norm", "word_perplexity", "byte_perplexity", "bits_per_byte"}
    about = [(row["metric"], row["scaling"], row["length"]) for row in rows]
    assert sorted(about) == sorted(
        itertools.product(metrics, ("trained", "yarn-auto"), ("16", "96"))
    )
    samples = (folder / "samples" / "local_choices-trained-96.jsonl").read_text().splitlines()
    answers = [json.loads(line)["acc"] for line in samples]
    row = rows[about.index(("acc", "trained", "96"))]
    assert float(row["value"]) == pytest.approx(statistics.fmean(answers))
    assert float(row["standard_error"]) == pytest.approx(statistics.stdev(answers) / 6**0.5)
    assert f" {float(row['value']):.3f} ±{float(row['standard_error']):.3f}" in out
    assert list((folder / "yarn-auto").glob("events.*"))
    assert len([*folder.parent.glob(".harness.cache/*.db")]) == 3  # 16 is the window: YaRN by 1

    monkeypatch.setattr(HarnessModel, "_scores", None)  # every answer is known
    assert harness(*WORDS)[0] == 0
    assert table() == rows


def test_tasks_that_cannot_be_asked_are_one_line(harness, tmp_path, monkeypatch):
    lost = tmp_path / "lost.yaml"
    lost.write_text("task: lost\ndataset_path: nobody/nothing\noutput_type: multiple_choice\n")
    status, _, err = harness(f"tasks=[{lost}]")
    assert status == 2
    assert err.startswith(f"rope-jax harness: tasks: {lost}: cannot be loaded: Couldn't reach")
    assert harness("tasks=[rulervt]")[2] == (
        "rope-jax harness: tasks: the harness has no rulervt; "
        "did you mean ruler_vt, ruler, ruler_fwe?\n"
    )
    monkeypatch.delitem(sys.modules, "rope_jax.harness.run")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert harness("tasks=[ruler_vt]")[2] == (
        "rope-jax harness: harness needs the package lm_eval; install it with "
        "pip install 'rope-jax[lm-eval]'\n"
    )


def test_rulers_metric_of_a_length_is_its_score(capsys):
    samples = [{"filter": "none", "8192": x, "4096": -1.0} for x in (1.0, 0.5, 0.0, 1.0)]
    of_task = {"name": "ruler_vt", "alias": "ruler_vt", "sample_len": 4, "4096,none": -1}
    of_task |= {"4096_stderr,none": "N/A", "8192,none": 0.625, "8192_stderr,none": "N/A"}
    results = {"results": {"ruler_vt": of_task}, "samples": {"ruler_vt": samples}}
    (row,) = result_rows(results, "yarn", 8192, 3, 1.5)
    error = statistics.stdev((1, 0.5, 0, 1)) / 2
    assert row == ("ruler_vt", "score", "yarn", 8192, 3, 0.625, pytest.approx(error), 4, 1.5)
    table = harness_table([row, row._replace(length=16384, value=0.25)], "all")
    assert table.columns == ("8,192", "16,384")
    assert [cell.value for cell in table.lines[0].cells] == ["0.625", "0.250"]
