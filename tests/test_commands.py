"""Training and a sweep from their command lines to what they write.

tests/test_bad_input.py and tests/training/test_loop.py start processes.
"""

import csv
import json

import numpy as np
from matplotlib.image import imread

import eval_ppl
import train
from rope_jax.commands.main import main

TINY = """\
name: tiny
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
stages: [{steps: 20, seq_len: 16, batch_size: 4}]
optim: {warmup_steps: 1}
checkpoint: {every_steps: 20}
data: {type: text, files: [texts/*.txt], test_fraction: 0.4, validation_fraction: 0.2,
  cache_dir: cache}
"""


def next_lines(out: str) -> list[str]:
    """Return the commands that the last lines name."""
    *_, lines = out.partition("\nnext: ")
    return [line.strip() for line in lines.splitlines()]


def test_a_run_is_trained_and_swept_and_exported(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    rng = np.random.default_rng(0)
    for index in range(10):
        text = "".join(rng.choice(["rope ", "turns ", "slow\n", "fast "], 120))
        (tmp_path / "texts" / f"{index}.txt").write_text(text)
    (tmp_path / "run.yaml").write_text(TINY)
    status, out, err = call(train.main, "train.py", "run.yaml", "log_every_steps=1")
    assert (status, err) == (0, "")
    for said in ("parameters", "cpu", "1,280 tokens", "none: slowest wavelength 6,283", "L 16"):
        assert said in out
    assert next_lines(out) == ["rope-jax sweep runs/tiny"]
    status, out, err = call(
        eval_ppl.main,
        "eval_ppl.py",
        "runs/tiny",
        "name=short",
        "lengths=[8,16]",
        "scalings=[trained,pi]",
        "resamples=200",
    )
    assert (status, err) == (0, "")
    assert next_lines(out) == [
        "rope-jax compare runs/tiny/evals/short  # an interactive page",
        "tensorboard --logdir runs/tiny",
    ]
    evals = tmp_path / "runs/tiny/evals/short"
    with (evals / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {"trained", "pi-auto"}
    assert {row["name"] for row in rows} == names
    # An untrained model guesses at worst: there are 256 bytes, and the text has far fewer.
    assert all(2 < float(row["ppl"]) < 300 for row in rows)
    assert len({row["targets"] for row in rows}) == 1
    summary = json.loads((evals / "summary.json").read_text())
    assert summary["window"] == 16
    assert summary["curves"]["trained"]["blow_up"]["16"]["value"] == 1
    assert imread(evals / "curve.png").shape[1] > 1000
    for name in names:
        assert len(list((evals / name).glob("events.*.tfevents.*"))) == 1
    status, out, err = call(main, "rope-jax", "export", "runs/tiny", "runs/tiny-hf")
    assert (status, err) == (0, "")
    assert next_lines(out) == ["rope-jax sweep runs/tiny-hf"]
