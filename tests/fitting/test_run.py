"""A fit from checkpoint to strategy file: what it writes and prints, and how it resumes."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.checkpoints import Imported
from rope_jax.config.data import StdlibData, TextData
from rope_jax.config.strategy import read_strategy
from rope_jax.config.training import TrainingConfig
from rope_jax.console import plain_console
from rope_jax.data.storage import open_corpus
from rope_jax.data.tokenizers import ByteTokenizer
from rope_jax.errors import UserError
from rope_jax.fitting import run as fitting_run
from rope_jax.fitting.fitter import Fit, FitState
from rope_jax.fitting.step import FitStep
from rope_jax.runs.directory import RunDirectory
from rope_jax.session import Session
from rope_jax.sweeps import model
from tests.fitting.conftest import fitted
from tests.sweeps.conftest import rows, swept

pytestmark = pytest.mark.usefixtures("blank_figures")

QUICK = {"learn": ["far_phase", "far_amplitude"], "name": "quick"}
SWEEP = {"max_documents": 4, "max_blocks": 1, "targets": 8, "resamples": 20}


def files_of(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def copied(run, folder):
    """Return a copy of the run without its fits."""
    copy = RunDirectory(folder / "tiny")
    shutil.copytree(run[0].path, copy.path, ignore=shutil.ignore_patterns("evals", "fits"))
    return copy, run[1]


def results_of(folder):
    lines = (folder / "results.csv").read_text().splitlines()
    return {(row["name"], int(row["length"])): float(row["nll"]) for row in csv.DictReader(lines)}


@pytest.fixture
def no_gradients(monkeypatch):
    """Let steps change numbers without a program that learns."""

    def step(self, free, opt_state, number):
        return jax.tree.map(lambda x: x + jnp.float32(0.01), free), opt_state, jnp.ones(())

    monkeypatch.setattr(FitStep, "__call__", step)


@pytest.fixture(scope="module")
def without_test_split():
    """Load corpora whose test split is empty."""
    load = model.load_model

    def loaded(*arguments, **how):
        found = load(*arguments, **how)
        test = found.corpus.test
        empty = dataclasses.replace(test, tokens=test.tokens[:0], starts=test.starts[:1], ids=[])
        return dataclasses.replace(found, corpus=dataclasses.replace(found.corpus, test=empty))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting_run, "load_model", loaded)
        yield


@pytest.fixture(scope="module")
def settings(run, tmp_path_factory):
    """Return a fit by head with texts of its own: copies of those of the run."""
    folder = tmp_path_factory.mktemp("own")
    texts = sorted(Path(run[1].data.files[0]).parent.iterdir())
    for path in texts:
        shutil.copy(path, folder)
    parts = {"train": texts[:5], "validation": texts[5:8], "test": texts[8:]}
    files = {split: [str(folder / path.name) for path in paths] for split, paths in parts.items()}
    return QUICK | {"data": {"type": "text", "files": files, "cache_dir": str(folder / "cache")}}


@pytest.fixture(scope="module")
def quick(run, settings, without_test_split, tmp_path_factory):
    """Return the folder of the fit, what was printed, and the folder as it was after step 2."""
    before, after_2 = files_of(run[0].checkpoints), tmp_path_factory.mktemp("killed") / "quick"

    def saved(self, path, identity, save=FitState.save):
        save(self, path, identity)
        if self.step == 2:
            shutil.copytree(path.parent, after_2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitState, "save", saved)
        folder, said = fitted(run, **settings)
    assert files_of(run[0].checkpoints) == before
    return folder, said, after_2


def test_the_table_has_start_fitted_and_truncation(quick, settings):
    folder, said, _ = quick
    assert "learned     32 numbers: far_phase, far_amplitude, per head" in said
    assert "step    0/4  validation " in said
    # whose texts they are
    corpus = open_corpus(TextData(**settings["data"]), ByteTokenizer())
    assert "  texts       {type: text, files: {train: [" in said
    for split, count, what in (("train", 5, "learn from"), ("validation", 3, "check on")):
        tokens = len(getattr(corpus, split).tokens)
        assert f"  {split}: {count} documents, {tokens:,} tokens, to {what}\n" in said
    made_by = read_strategy(str(folder / "strategy.json")).made_by
    assert made_by["corpus"] == corpus.fingerprint[:16]
    assert settings["data"]["files"]["train"][0] in made_by["texts"]
    assert "no interval: too few documents" in " ".join(said.split())
    nll = results_of(folder)
    cells = [("truncation", 16), ("start", 16), ("fitted", 16), ("start", 64), ("fitted", 64)]
    assert list(nll) == cells
    summary = json.loads((folder / "summary.json").read_text())
    checks = {check["step"]: check["64"] for check in summary["checks"]}
    assert list(checks) == [0, 2, 4]
    # the checks are on the same targets as the table
    assert checks[0] == pytest.approx(nll["start", 64], abs=1e-5)
    assert checks[summary["best_step"]] == pytest.approx(nll["fitted", 64], abs=1e-5)
    assert min(checks.values()) == checks[summary["best_step"]]
    table = said.partition("nats per token on 24 validation tokens")[2].splitlines()
    for (name, length), value in nll.items():
        row = next(line for line in table if line.strip().startswith(f"{name} "))
        assert f"{value:.4f}" in row, (name, length)
    assert (folder / "numbers.png").is_file()


def test_a_sweep_takes_the_strategy_file_by_path(run, quick, settings):
    path, data = quick[0] / "strategy.json", settings["data"]
    entries = ["trained", {"type": str(path), "name": "mine"}, str(path)]
    asked = SWEEP | {"split": "validation", "lengths": [16, 64], "scalings": entries, "data": data}
    folder, said = swept(run, name="of-fit", **asked)
    found = {(row["name"], row["length"]): row["nll"] for row in rows(folder)}
    warned = f"{found['trained', 16]:.2f} nats per token at the window are worse than chance, ln V"
    assert said.count("worse than chance") == said.count(warned) == 1
    assert found["mine", 64] == found["quick", 64]
    wanted = results_of(quick[0])
    for mine, theirs in (
        (("mine", 64), ("fitted", 64)),
        (("mine", 16), ("fitted", 16)),
        (("trained", 16), ("truncation", 16)),
    ):
        assert found[mine] == pytest.approx(wanted[theirs], abs=1e-6)


def test_a_finished_fit_does_nothing_and_another_is_refused(run, quick, settings, tmp_path):
    folder = quick[0]
    before = files_of(folder)
    again, said = fitted(run, **settings)
    assert (again, said) == (folder, f"{folder}: already fitted\n")
    assert files_of(folder) == before
    for other in ({"seed": 5}, {"data": None}):
        with pytest.raises(UserError, match=r"quick: holds a fit with other settings; choose anot"):
            fitted(run, **settings | other)
    # of another checkpoint
    copy = copied(run, tmp_path)
    file = shutil.copytree(folder, copy[0].fits / "quick") / "summary.json"
    newest = json.loads(file.read_text())["step"]
    file.write_text(file.read_text().replace(f'"step": {newest}', '"step": 1'))
    says = f"quick: holds a fit of step 1, and the newest checkpoint is that of step {newest};"
    with pytest.raises(UserError, match=says):
        fitted(copy, **settings)
    file.write_text("{")
    with pytest.raises(UserError, match=r"summary\.json: is damaged; delete .*quick to fit again"):
        fitted(copy, **settings)


def test_numbers_that_cannot_change_the_start_are_refused_before_weights_are_read(run, monkeypatch):
    monkeypatch.setattr(fitting_run, "load_model", None)
    for given in ({"start": "none"}, {"start": {"type": "yarn", "factor": 2}}):
        with pytest.raises(UserError, match=r"far_phase belongs to far keys"):
            fitted(run, **QUICK | given | {"learn": ["far_phase"]})


def test_a_killed_fit_ends_with_the_same_strategy_file(
    run, quick, settings, without_test_split, tmp_path
):
    copy = copied(run, tmp_path)
    whole, _, after_2 = quick
    shutil.copytree(after_2, copy[0].fits / "quick")
    text = Path(settings["data"]["files"]["train"][0])
    content = text.read_text()
    text.write_text(content + "more")
    with pytest.raises(UserError, match=r"belongs to a fit with another checkpoint, corpus or cod"):
        fitted(copy, **settings)
    text.write_text(content)
    folder, said = fitted(copy, **settings)
    assert "step    0/4" not in said
    assert "resuming after step 2\n" in said
    for name in ("strategy.json", "results.csv", "metrics.jsonl"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_texts_of_its_own_are_asked_for_and_have_to_be_long_enough(run, tmp_path):
    (tmp_path / "book.txt").write_text("".join(f"line {n} of a book\n" for n in range(30)))
    data = {"type": "text", "files": [str(tmp_path / "*.txt")], "cache_dir": str(tmp_path)}
    with pytest.raises(UserError, match=r"^length: no document of the validation split has 65 t"):
        fitted(run, **QUICK | {"name": "short"}, data=data)
    # an imported model has none, unless they were named when it was imported
    imported = run[1].model_copy(update={"imported": Imported(model="a/b", identity="")})
    without = imported.model_copy(update={"data": StdlibData()})
    says = f"^data: {run[0].path} has no texts of its own; name some, such as 'data.files"
    with pytest.raises(UserError, match=says):
        fitted((run[0], without), **QUICK | {"name": "imported"})
    assert not (run[0].fits / "imported").exists()
    with pytest.raises(UserError, match="length: 8 is within the window"):
        fitted((run[0], imported), length=8)


def test_a_fit_without_a_better_step_keeps_the_start_and_says_so(run, no_gradients, monkeypatch):
    checks = iter([1.0, 2.0])
    monkeypatch.setattr(Fit, "nll", lambda *_: {64: next(checks)})
    asked = {"learn": ["frequencies"], "per": "layer", "patience": 1, "check_every": 1}
    start = {"type": "none", "query_scale": {"type": "logn"}}
    folder, said = fitted(run, name="worse", start=start, **asked)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["best_step"], summary["stopped"]) == (0, "no improvement in 1 checks")
    assert "no step beat the starting point; writing it unchanged" in said
    strategy = read_strategy(str(folder / "strategy.json"))
    theta = run[1].geometry.inv_freq()
    np.testing.assert_allclose(strategy.scaling.inv_freq, [theta] * 2, rtol=1e-6)


START_BEYOND = {"type": "none", "map": {"type": "rerope", "window": 16}}
REFUSED = {
    "within the window": ({"length": 16}, "length: 16 is within the window of 16 tokens"),
    "too many targets": ({"targets": 9}, "targets: 9 is too many for a window of 16 tokens"),
    "no such step": ({"step": 7}, ": has no step 7"),
    "too long": ({"length": 2_000}, "length: no document of the training split has 2,001 tokens"),
    "too many windows": (
        {"batch_tokens": 2_000_000_000},
        "batch_tokens: a step reads 31,250,000 × 64 tokens and, beside ",
    ),
    "too long for memory": (
        {"length": 1_000_000, "attention": "xla"},
        "length: a step reads 1 × 1,000,000 tokens and, beside ",
    ),
    "start beyond the window": (
        {"start": START_BEYOND},
        "start: rerope: map.window: 16 put the first of 64 tokens at distance 16, outside",
    ),
}


def test_a_model_too_large_for_the_device_is_refused_before_its_weights_are_read(run, monkeypatch):
    memory = model.load_model(Session(*run, plain_console(quiet=True))).memory
    monkeypatch.setattr(model, "newest_params", lambda *_: pytest.fail("they were read"))
    monkeypatch.setattr(model, "device_bytes", lambda: memory.weights - 1)
    with pytest.raises(UserError, match=r"^mesh\.fsdp: the weights,? .*take "):
        fitted(run, name="large")
    there_are = memory.weights + memory.window(64)  # a step reads four of these windows
    monkeypatch.setattr(model, "device_bytes", lambda: there_are)
    with pytest.raises(UserError, match=r"^batch_tokens: a step reads 4 × 64 .* GiB of weights, "):
        fitted(run, name="large")


@pytest.mark.parametrize(("settings", "says"), REFUSED.values(), ids=REFUSED)
def test_a_refused_fit_leaves_nothing(run, settings, says):
    before = set(run[0].path.rglob("*"))
    with pytest.raises(UserError) as caught:
        fitted(run, name="refused", **settings)
    assert says in str(caught.value)
    assert set(run[0].path.rglob("*")) == before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"position": {"type": "pope"}}, "its position is pope, and a fit is for rope"),
        ({"attention": "linear"}, "its attention is linear, and a fit is for a softmax"),
    ],
)
def test_only_rope_with_a_softmax_is_fitted(run, settings, says):
    raw = run[1].model_dump(mode="json", exclude_none=True)
    other = TrainingConfig.model_validate(raw | {"model": raw["model"] | settings})
    with pytest.raises(UserError, match=says):
        fitted((run[0], other))
