"""results/costs.py, from the files of a run and its fits to the CSV."""

import csv
import json
import math
import sys

import pytest

from results.costs import costs_of, main
from rope_jax.runs.directory import RunDirectory


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path):
    """Return a run of 30 steps of 4 × 16 tokens, with a fit of 3 steps."""
    folder = tmp_path / "tiny"
    fit = folder / "fits/short"
    fit.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        "name: tiny\nmodel: {hidden_size: 8, intermediate_size: 12, num_hidden_layers: 1, "
        "num_attention_heads: 2}\noptim: {warmup_steps: 5}\n"
        "stages: [{steps: 30, seq_len: 16, batch_size: 4}]\n"
    )
    trained = [{"step": step, "train/tokens": 64 * step} for step in (10, 20, 30)]
    trained.insert(2, {"step": 20, "validation/loss": 1.0})
    write_lines(folder / "metrics.jsonl", trained)
    speeds = {10: 64.0, 20: 128.0, 30: 32.0}
    name = "throughput/tokens_per_second"
    write_lines(folder / "throughput.jsonl", [{"step": n, name: x} for n, x in speeds.items()])
    (fit / "fit.yaml").write_text("length: [32, 50]\nbatch_tokens: 100\nkeep_short: 0.5\n")
    checks = [{"step": 0.0}, {"step": 3.0}]
    summary = {"step": 30, "numbers": 7, "minutes": 0.5, "checks": checks}
    (fit / "summary.json").write_text(json.dumps(summary))
    return folder


# 32, 50 and 32 tokens in turn: 3 windows of 32, or 2 of 50, each time beside 6 of 16
FIT_TOKENS = 3 * 32 + 2 * 50 + 3 * 32 + 3 * 6 * 16


def test_a_run_and_its_fit(run, monkeypatch):
    output = run.parent / "costs.csv"
    monkeypatch.setattr(sys, "argv", ["costs.py", str(run), "--output", str(output)])
    main()
    training, fit = csv.DictReader(output.read_text().splitlines())
    # 257 tokens by 8, tied; four projections of 8 × 8, three of 8 × 12, three norms
    weights = 257 * 8 + 4 * 8 * 8 + 3 * 8 * 12 + 3 * 8
    wanted = ("tiny", "", str(weights), "30", "1920", str(10.0 + 5.0 + 20.0))
    assert tuple(training.values()) == wanted
    assert tuple(fit.values()) == ("tiny", "short", "7", "3", str(FIT_TOKENS), "30.0")


def test_steps_whose_speed_is_missing_make_the_time_unknown(run):
    lines = (run / "throughput.jsonl").read_text().splitlines(keepends=True)
    (run / "throughput.jsonl").write_text("".join(lines[:2]))
    training, _ = costs_of(RunDirectory(run))
    assert training.tokens == 1920
    assert math.isnan(training.seconds)


def test_an_imported_model_has_the_costs_of_its_fits_alone(run):
    with (run / "config.yaml").open("a") as file:
        file.write("imported: {model: published, identity: x}\n")
    (fit,) = costs_of(RunDirectory(run))
    assert fit.fit == "short"
