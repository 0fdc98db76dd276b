"""A sweep of a run: what it prints and writes, and how it resumes after an interruption."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.errors import UserError
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import Session
from rope_jax.sweeps.journal import FileJournal, journal_identity
from rope_jax.sweeps.model import load_model
from tests.sweeps.conftest import STAGE, rows, swept, trained

pytestmark = pytest.mark.usefixtures("blank_figures")


@pytest.fixture(scope="module")
def staged(tmp_path_factory) -> tuple[RunDirectory, TrainingConfig]:
    """Three checkpoints: two of a stage of 8 tokens, one of a stage of 16, with PI."""
    stages = [
        STAGE | {"steps": 4, "seq_len": 8},
        STAGE | {"scaling": {"type": "pi", "factor": 2.0}},
    ]
    checkpoint = {"every_steps": 2, "keep": 9}
    return trained(tmp_path_factory.mktemp("staged"), stages, checkpoint=checkpoint)


def cut_off(run, most, **settings):
    """Sweep until the journals have so many more measurements, and then as if Ctrl-C came."""
    set_item, count = FileJournal.__setitem__, []

    def interrupted(self, key, figures):
        set_item(self, key, figures)
        count.append(key)
        if len(count) == most:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileJournal, "__setitem__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            swept(run, **settings)


def test_an_interrupted_sweep_resumes_where_it_stopped(run):
    protocols = {"protocols": ["same_tokens", "per_position"]}
    cut_off(run, 4, name="cut", **protocols)
    assert run[0].sweep_journal("cut", 2).exists()
    assert not (run[0].evals / "cut").exists()
    cut, said = swept(run, name="cut", **protocols)
    assert "resuming: 4 of 7 measurements reused" in said
    resumed = rows(cut)
    # complete: the same sweep is read, whatever it is to look like
    _, said = swept(run, name="cut", **protocols, show="nats", figure_width="column")
    assert "nothing to measure: all 7 measurements were made before (--again rep" in said
    assert rows(cut) == resumed
    # another scaling is measured, and nothing else
    more = {"scalings": ["trained", "dynamic_ntk", {"type": "pi", "factor": 3}]}
    _, said = swept(run, name="cut", **protocols, **more)
    assert "resuming: 7 of 11 measurements reused" in said
    _, said = swept(run, name="cut", again=True, **protocols)
    assert "measurements" not in said
    assert rows(cut) == resumed


def test_equal_texts_under_two_names_are_warned_of(run, tmp_path):
    for name, words in (("a", "one "), ("b", "one "), ("c", "two "), ("d", "one ")):
        (tmp_path / f"{name}.txt").write_text(words * 40)
    data = {"type": "text", "files": [str(tmp_path / "[abc].txt")]}
    _, said = swept(run, name="equal", data=data)
    said = " ".join(said.split())
    repeats = f"data: {tmp_path / 'b.txt'} has exactly the same text as {tmp_path / 'a.txt'}"
    assert f"{repeats}, but each counts in the intervals" in said
    _, said = swept(run, name="three", data=data | {"files": [str(tmp_path / "*.txt")]})
    said = " ".join(said.split())
    assert f"{repeats} (and 1 more repeat others), but" in said
    assert "keep one of each text" in said
    _, said = swept(run, name="none", data=data | {"files": [str(tmp_path / "[bc].txt")]})
    assert "same text" not in said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lengths": [8, 10**6]}, "^lengths: "),
        (
            {"memory_gib": 0.00001, "attention": "xla"},
            "^memory_gib: a window of 64 tokens with attention xla takes at least 9.2e-05 GiB per "
            "device.*; attention=blockwise takes less$",
        ),
        ({"steps": [7]}, "checkpoints: has no step 7; it has 2$"),
        ({"scalings": [{"type": "explicit", "factors": [1.0, 2.0]}]}, "scalings"),
        ({"protocols": ["sliding"], "lengths": [8], "stride": 9}, "stride"),
        ({}, "checkpoint"),
    ],
)
def test_a_refused_sweep_leaves_nothing(run, tmp_path, settings, says):
    directory, config = run
    ignored = shutil.ignore_patterns("evals")
    copy = RunDirectory(Path(shutil.copytree(directory.path, tmp_path / "copy", ignore=ignored)))
    if says == "checkpoint":
        shutil.rmtree(copy.checkpoints / "2/params")
    before = {path for path in copy.path.rglob("*") if "checkpoints" not in path.parts}
    with pytest.raises(UserError, match=says):
        swept((copy, config), **settings)
    assert {p for p in copy.path.rglob("*") if "checkpoints" not in p.parts} == before


def test_a_journal_is_for_one_checkpoint_corpus_split_backend_and_code(run, monkeypatch):
    said = plain_console(quiet=True)
    session, other = Session(*run, said), Session(*run, said, "blockwise")
    corpus = session.open_corpus()

    def identity(step=2, corpus=corpus, split="test", training=session.config):
        return journal_identity(run[0], training, corpus, split, step)

    found = [identity(), identity(step=1), identity(split="validation")]
    found.append(identity(corpus=dataclasses.replace(corpus, fingerprint="another")))
    found.append(identity(training=other.config))
    assert identity() == found[0]
    monkeypatch.setattr("rope_jax.sweeps.journal.code_hash", lambda: "another")
    found.append(identity())
    assert len(set(found)) == 6


@pytest.mark.parametrize("fast", [False, True])
def test_a_run_in_bfloat16_is_swept_where_its_products_are_others(tmp_path, monkeypatch, fast):
    def products(are_fast):
        monkeypatch.setattr("rope_jax.config.resolve._multiplies_bfloat16", lambda: are_fast)

    products(fast)
    run = trained(
        tmp_path, model={"hidden_size": 16, "num_attention_heads": 2, "dtype": "bfloat16"}
    )
    products(not fast)
    loaded = load_model(Session(*run, plain_console(quiet=True)))
    assert loaded.training.model.product_dtype == ("float32" if fast else "bfloat16")


def test_a_sweep_is_refused_before_weights_are_read(run, monkeypatch):
    def fail(*_):
        pytest.fail("the weights were read")

    found = load_model(Session(*run, plain_console(quiet=True))).memory
    weights, window = found.weights, found.window(64)
    with monkeypatch.context() as patch:
        patch.setattr("rope_jax.sweeps.model.newest_params", fail)
        patch.setattr("rope_jax.sweeps.model.device_bytes", lambda: weights - 1)
        with pytest.raises(UserError, match=r"^mesh\.fsdp: the weights, .* copy of them, take "):
            swept(run, name="large")
        patch.setattr("rope_jax.sweeps.model.device_bytes", lambda: weights + window // 2)
        with pytest.raises(UserError, match=r"^lengths: a window of 64 .* may fit is 16$"):
            swept(run, name="large", attention="blockwise")
    assert not (run[0].evals / "large").exists()


@pytest.mark.slow
def test_a_sweep_of_all_checkpoints_equals_a_sweep_of_each(staged, monkeypatch):
    """Each has the window and scaling of its stage; checkpoints of a stage share compilations."""
    compiled = []
    lower = jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered, "compile", lambda *a, **k: (compiled.append(a), lower(*a, **k))[1]
    )
    entries = ["trained", {"type": "ntk", "factor": "auto", "over": "trained"}]
    asked = {"scalings": entries, "lengths": [4, 16, 64]}
    together, said = swept(staged, name="all", steps="all", **asked)
    # one per length, the first stage's window included
    assert len(compiled) == 4
    assert "steps 2, 4, 6; window 16 tokens, scaling pi" in said
    found = rows(together)
    assert {row["step"] for row in found} == {2, 4, 6}
    asked["lengths"] = [4, 8, 16, 64]
    for step in (2, 4, 6):
        alone, _ = swept(staged, name=f"only-{step}", steps=[step], **asked)
        assert rows(alone) == [row for row in found if row["step"] == step]
    newest, _ = swept(staged, name="newest", **asked)
    assert rows(newest) == rows(alone)
    # the trained scaling and `auto` are those of the checkpoint's stage
    of = {(row["step"], row["name"], row["length"]): row for row in found}
    assert (of[4, "trained", 64]["scaling"], of[6, "trained", 64]["scaling"]) == ("none", "pi")
    ntk = "ntk-auto-over-trained"
    assert (of[4, ntk, 64]["factor"], of[6, ntk, 64]["factor"]) == (8.0, 4.0)
    assert len({row["targets"] for row in found if row["length"] == 64}) == 1
    assert len({row["corpus"] for row in found}) == 1

    summary = json.loads((together / "summary.json").read_text())
    assert (summary["step"], summary["window"]) == (6, 16)
    assert [(early["step"], early["window"]) for early in summary["earlier"]] == [(2, 8), (4, 8)]
    assert (together / "steps.png").exists()
    assert not (alone / "steps.png").exists()
    assert f"{np.exp(of[2, 'trained', 64]['nll']):.0f}" in said


def test_the_estimate_is_of_what_is_left_of_all_checkpoints(staged):
    asked = {"lengths": [16], "scalings": ["trained"], "name": "left"}
    said = [swept(staged, steps=steps, **asked)[1] for steps in ([2], [2, 4], [2, 4])]
    assert ["time: about " in text for text in said] == [True, True, False]
    assert ["nothing to measure" in text for text in said] == [False, True, True]


def test_a_damaged_checkpoint_is_skipped_among_all_but_refused_by_number(staged, tmp_path):
    run, config = staged
    copy = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "copy")))
    shutil.rmtree(copy.checkpoints / "4/params")
    folder, said = swept((copy, config), name="all", steps="all")
    assert "the checkpoint of step 4 is damaged" in said
    assert said.count("skipped") == 1
    assert {row["step"] for row in rows(folder)} == {2, 6}
    with pytest.raises(UserError, match="the checkpoint of step 4 is damaged"):
        swept((copy, config), name="named", steps=[2, 4])
    for step in (2, 6):
        shutil.rmtree(copy.checkpoints / f"{step}/params")
    with pytest.raises(UserError, match="the checkpoint of step 6 is damaged"):
        swept((copy, config), name="none", steps="all")


def test_an_older_checkpoint_that_replaces_a_damaged_one_is_swept_at_its_own_window(
    staged, tmp_path
):
    run, config = staged
    copy = RunDirectory(Path(shutil.copytree(run.path, tmp_path / "copy")))
    shutil.rmtree(copy.checkpoints / "6/params")
    folder, said = swept((copy, config), name="older", lengths=[4, 32], scalings=["trained"])
    assert {row["length"] for row in rows(folder)} == {4, 8, 32}
    first, _, then = said.partition("the checkpoint of step 6 is damaged")
    assert "step 6; window 16 tokens" in first
    assert "step 4; window 8 tokens" in then
