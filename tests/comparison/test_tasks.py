"""Tasks of compared sweeps: read strictly, shown on the page and in comparison.md."""

import json

import pytest

from rope_jax.comparison.read import read_sweep
from rope_jax.errors import UserError
from rope_jax.report.comparison import comparison_markdown
from rope_jax.report.page import format_page
from rope_jax.results.tasks import TaskRow
from rope_jax.runs.tables import format_csv
from tests.comparison.conftest import compared
from tests.report.rows import task_row
from tests.report.test_page import charts_of

EFFECTIVE = {
    "effective_length": 32,
    "effective_length_is_last_tested": False,
    "effective_length_at_least": 16,
    "effective_length_at_most": 64,
}


def row(name, task, length, value, **fields):
    return task_row(name, length, value, 0.25, task=task, kind_of_task=task, **fields)


ROWS = [
    *(row(name, "passkey", n, 0.5, depth=d) for name in ("trained", "yarn-4")
      for d in (0.0, 1.0) for n in (16, 32, 64) if (name, n) != ("yarn-4", 32)),
    *(row(name, "passkey", n, 0.125, taken_out=True) for name in ("trained", "yarn-4")
      for n in (16, 32, 64)),
    *(row(name, "mqar", 16, 0.75, chance=None) for name in ("trained", "yarn-4")),
    row("trained", "mqar", 16, 0.25, taken_out=True),
    row("yarn-4", "mqar", 16, 0.5, taken_out=True),
    row("trained", "passkey", 16, 1.5, depth=0.0, metric="nats"),
]  # fmt: skip


@pytest.fixture
def folder(sweep_of):
    folder = sweep_of("one") / "evals/demo"
    (folder / "tasks.csv").write_text(format_csv(TaskRow._fields, ROWS))
    summary = json.loads((folder / "summary.json").read_text())
    summary["tasks"] = {"passkey": {"yarn-4": EFFECTIVE}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_rows_of_tasks_are_read_back_or_refused(folder):
    sweep = read_sweep(folder)
    assert list(sweep.tasks) == ROWS
    assert tuple(sweep.effective["passkey"]["yarn-4"]) == (32, 16, 64, False)
    path = folder / "tasks.csv"
    path.write_text(path.read_text().replace(",exact,", ",ppl,", 1))
    message = r"tasks\.csv: line 2: metric: should be 'nats' or 'exact', not 'ppl'"
    with pytest.raises(UserError, match=message):
        read_sweep(folder)


def test_a_sweep_without_tasks_has_none(sweep_of):
    (sweep,) = (found := compared(sweep_of("two"))).sweeps
    assert (list(sweep.tasks), dict(sweep.effective)) == ([], {})
    assert "effective" not in comparison_markdown(found)


def test_the_page_has_a_map_per_task_with_every_cell_at_its_length(folder):
    _, (passkey, layout), (mqar, _) = charts_of(format_page(compared(folder)))
    trained, yarn = passkey
    assert trained["x"] == ["16", "32", "64"]
    titles = [title["text"] for title in layout["annotations"]]
    assert titles == ["trained", "yarn-4: 32 [16, 64]"]
    assert trained["y"] == yarn["y"] == ["0", "100", "taken out"]
    assert trained["z"] == [[50, 50, 50], [50, 50, 50], [12.5, 12.5, 12.5]]
    assert yarn["z"][0] == [50, None, 50]  # one length was not measured
    assert yarn["customdata"][0] == [[25, 75], None, [25, 75]]
    assert mqar[0]["y"] == ["trained", "yarn-4", "taken out"]
    assert mqar[0]["z"] == [[75], [75], [50]]  # the largest of all scalings


def test_markdown_lists_effective_lengths(folder):
    text = comparison_markdown(compared(folder))
    assert "## `one/demo`\n\nEffective lengths by task.\n" in text
    assert "| yarn-4 | 32 \\[16, 64\\] |" in text
