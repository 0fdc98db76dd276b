"""What a sweep says about its tasks: tables, terminal, event files, figures, and its folder."""

import csv
import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rope_jax.config.training import TrainingConfig
from rope_jax.report import tasks as report
from rope_jax.report.measured import effective_text
from rope_jax.report.table import format_latex, format_markdown
from rope_jax.results.files import read_summary
from rope_jax.results.statistics import Estimate
from rope_jax.results.tasks import (
    EffectiveLength,
    ablated_shares,
    effective_length,
    summarize_tasks,
)
from rope_jax.sweeps.run import sweep_tables, write_folder
from tests.evaluation.test_sweep_tasks import ORIGIN, sweep_tasks

TRAINING = TrainingConfig.model_validate(
    {"name": "toy", "stages": [{"steps": 5, "seq_len": 64, "batch_size": 1}]}
)


@pytest.fixture(scope="module")
def result():
    """A model that finds what lies in the last 100 tokens: all at 64, 2/3 at 128, 1/3 at 200."""
    return sweep_tasks()


@pytest.fixture(scope="module")
def found(result):
    return sweep_tables([(result, ORIGIN)])


@pytest.fixture(scope="module")
def written(result, found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "tasks"
    write_folder(folder, result.config, found, TRAINING)
    return folder


def shares(*values):
    return {
        64 * 2**place: Estimate(value=v, low=v - 0.1, high=min(1.0, v + 0.1))
        for place, v in enumerate(values)
    }


def test_the_effective_length_is_the_last_that_all_shorter_ones_reach():
    assert effective_length(shares(1.0, 0.9, 0.5, 1.0), 0.85) == EffectiveLength(
        128, 64, 128, False
    )
    assert effective_length(shares(0.8, 1.0, 1.0), 0.85) == EffectiveLength(None, None, 256, False)
    assert effective_length(shares(1.0, 1.0, 1.0), 0.85) == EffectiveLength(256, 256, 256, True)
    assert effective_length(shares(0.85), 0.85).length == 64


def test_effective_lengths_as_text():
    assert effective_text(512, 512, 512, False) == "512"
    assert effective_text(512, 256, 1024, False) == "512 [256, 1,024]"
    assert effective_text(2048, 2048, 2048, True) == "≥ 2,048"
    assert effective_text(None, None, None, False) == "none"
    assert effective_text(None, None, 64, False) == "none [none, 64]"


def test_the_summary_pools_the_depths_of_a_sample(found):
    found = found.checkpoints[0].tasks["passkey"]["trained"]
    assert {n: share.value for n, share in found.exact.items()} == {
        64: 1.0,
        128: pytest.approx(2 / 3),
        200: pytest.approx(1 / 3),
    }
    # the same at every sample, so 20 samples are 20 trials and not 60
    low, high = found.exact[128].low, found.exact[128].high
    assert low < 0.47
    assert high > 0.81
    assert found.effective.length == 64
    assert found.threshold == 0.85


def test_the_control_is_the_largest_of_the_scalings(found):
    samples = found.samples
    better = [
        row._replace(name="other", exact=int(row.sample < 5)) if row.taken_out else row
        for row in samples
    ]
    assert ablated_shares([*samples, *better], 5)["passkey"] == dict.fromkeys((64, 128, 200), 0.25)
    assert ablated_shares(samples, 6) == {}
    assert summarize_tasks([], 0.85, resamples=10, seed=0) == {}


def test_tables_have_a_row_per_scaling_and_two_to_compare_with(found):
    (table,) = report.task_tables(found, {})
    text = format_markdown(table)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == "| scaling | 64 | 128 | 200 | effective | usable |"
    assert lines[2].startswith(r"| trained | 100 \[84, 100\] | 67 \[")
    assert lines[2].endswith(r"| 64 \[none, 128\] | ≥ 200 |")
    assert lines[3:] == ["| taken out | 0 | 0 | 0 |  |  |", r"| chance | \<1 | \<1 | \<1 |  |  |"]
    latex = format_latex(table)
    assert latex.count(r"\begin{tabular}") == 1
    assert "trained" in latex
    assert "taken out & 0 & 0 & 0 &" in " ".join(latex.split())


def test_a_folder_has_the_tables_the_figure_and_the_curves(found, written):
    cells = csv.DictReader((written / "tasks.csv").read_text().splitlines())
    assert [float(row["value"]) for row in cells] == [row.value for row in found.task_rows]
    assert read_summary(written)[1]["passkey"]["trained"].length == 64
    assert (written / "passkey.png").read_bytes().startswith(b"\x89PNG")
    assert "## `passkey`" in (written / "results.md").read_text()
    content = json.loads((written / "summary.json").read_text())
    assert content["tasks"]["passkey"]["trained"]["effective_length"] == 64
    curve = EventAccumulator(str(written / "trained")).Reload()
    exact = {event.step: event.value for event in curve.Scalars("exact/passkey")}
    assert exact == {64: 1.0, 128: pytest.approx(2 / 3), 200: pytest.approx(1 / 3)}
    assert {event.step for event in curve.Scalars("nats/passkey")} == {64, 128, 200}
