"""A sweep of a run: what is said, what it leaves, and how it goes on after an interruption."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rope_jax.config import validate
from rope_jax.errors import UserError
from rope_jax.evaluation.journal import FileJournal
from rope_jax.run_directory import RunDirectory
from rope_jax.schema import Config
from rope_jax.sweep_run import sweep_run
from rope_jax.sweep_schema import SweepConfig
from rope_jax.train_loop import train

pytestmark = pytest.mark.usefixtures("compiled_quickly")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[RunDirectory, Config]:
    folder = tmp_path_factory.mktemp("run")
    (folder / "texts").mkdir()
    rng = np.random.default_rng(0)
    for index in range(12):
        words = rng.choice(["rope ", "turns ", "slow ", "fast ", "pair\n"], 150)
        (folder / "texts" / f"{index}.txt").write_text("".join(words))
    small = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    raw = {
        "name": "tiny",
        "runs_dir": str(folder / "runs"),
        "model": {**small, "num_hidden_layers": 2},
        "data": {
            "type": "text",
            "files": [str(folder / "texts" / "*.txt")],
            "validation_fraction": 0.2,
            "test_fraction": 0.4,
            "cache_dir": str(folder / "cache"),
        },
        "optim": {"warmup_steps": 0},
        "stages": [{"steps": 2, "seq_len": 16, "batch_size": 4}],
    }
    config = Config.model_validate(raw)
    return train(config, Console(quiet=True)), config


def swept(run: tuple[RunDirectory, Config], **settings: object) -> tuple[Path, str]:
    """The folder of a sweep, and what it said."""
    raw = {"lengths": [8, 16, 64], "resamples": 50, "scalings": ["trained", "dynamic_ntk"]}
    said = Console(file=io.StringIO(), width=200)
    config = validate(SweepConfig, raw | settings, "test")
    sweep_run(*run, config, said)
    return run[0].evals / config.name, said.file.getvalue()


def rows(folder: Path) -> list[dict]:
    """results.jsonl, but for the seconds."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def test_an_interrupted_sweep_goes_on_where_it_was(run, monkeypatch):
    protocols = {"protocols": ["same_tokens", "sliding", "per_position"], "stride": 4}
    whole, said = swept(run, name="whole", **protocols)
    assert "goes on" not in said

    set_item = FileJournal.__setitem__

    def interrupted(self, key, figures):
        set_item(self, key, figures)
        if len(self) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FileJournal, "__setitem__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            swept(run, name="cut", **protocols)
    journal = run[0].sweep_journal("cut")
    assert journal.exists()
    assert not (run[0].evals / "cut").exists()
    cut, said = swept(run, name="cut", **protocols)
    assert "goes on: 5 figures were measured before" in said
    assert rows(cut) == rows(whole)
    assert not journal.exists()


def test_a_journal_is_of_one_backend(run):
    identity = []

    class Recorded(FileJournal):
        def __init__(self, path, of, text):
            identity.append(of)
            super().__init__(path, of, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rope_jax.sweep_run.FileJournal", Recorded)
        one, _ = swept(run, name="xla")
        other, _ = swept(run, name="blocks", attention="blockwise")
    assert len(set(identity)) == 2
    for a, b in zip(rows(one), rows(other), strict=True):
        assert a["nll"] == pytest.approx(b["nll"], abs=1e-5)


def test_more_memory_than_there_may_be_is_refused(run):
    with pytest.raises(UserError) as caught:
        swept(run, memory_gib=0.00001)
    assert str(caught.value).startswith("memory_gib: a window of 64 tokens takes about 0.0 GiB")
    assert str(caught.value).endswith("; attention=blockwise takes less")


def test_every_figure_has_perplexity_nats_and_bits(run):
    folder, said = swept(run, name="units")
    for row in rows(folder):
        assert row["ppl"] == pytest.approx(np.exp(row["nll"]))
        assert row["bpb"] == pytest.approx(row["nll"] / np.log(2))  # a token is a byte
    first = rows(folder)[0]
    for figure in (f"{first['ppl']:.0f}", f"{first['nll']:.3f}", f"{first['bpb']:.3f}"):
        assert figure in said
